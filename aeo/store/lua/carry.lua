-- Results taken over from an earlier evaluation, before anything runs.
-- ARGV: evaluation, then for each: trial, worker, attempt, outcome, where from, row as JSON. Returns how many were new.
local evaluation = ARGV[1]
local done = 0
for i = 2, #ARGV, 6 do
  local trial, worker, attempt, outcome, origin, row = unpack(ARGV, i, i + 5)
  if state_of(evaluation, trial) == 'pending' then
    leave_share(evaluation, trial)
    shift(evaluation, trial, 'pending', 'done')
    count(evaluation, 'outcome:' .. outcome, 1)
    redis.call('HSET', key('rows', evaluation), trial, 'carried ' .. row)
    redis.call('RPUSH', key('order', evaluation), trial)
    emit(evaluation, 'carried', 'trial', trial, 'worker', worker, 'attempt', attempt,
      'outcome', outcome, 'origin', origin, 'row', row)
    done = done + 1
  end
end
return done
