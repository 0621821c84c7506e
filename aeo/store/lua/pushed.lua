-- ARGV: evaluation, trial, token, arrival as JSON. Returns 1 when the token holds the trial.
local evaluation, trial, token, arrival = unpack(ARGV)
-- In any case: a result nobody waits for is looked at too, and kept.
redis.call('RPUSH', key('inbox'), arrival)
if not holds(evaluation, trial, token) then
  return 0
end
if state_of(evaluation, trial) == 'running' then
  local claim = claim_of(evaluation, trial)
  end_lease(evaluation, claim)
  shift(evaluation, trial, 'running', 'pushed')
  emit(evaluation, 'pushed', 'trial', trial, 'batch', claim.batch, 'worker', claim.worker, 'token', token,
    'attempt', claim.attempt)
end
return 1
