-- ARGV: evaluation, trial, token, phase. Returns 1 when the token runs the trial.
local evaluation, trial, token, phase = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not holds(evaluation, trial, token) or state_of(evaluation, trial) ~= 'running' then
  return 0
end
redis.call('HSET', key('phases', evaluation), trial, phase)
return 1
