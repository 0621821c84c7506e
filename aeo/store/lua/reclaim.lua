-- A run that lost its lease and goes on: it gets the trial back while nobody else has it.
-- ARGV: evaluation, trial, batch, worker, token, attempt, lease in ms. Returns 1 when the run may go on.
local evaluation, trial, batch, worker, token, attempt, lease = unpack(ARGV)
local state = status_of(evaluation, 'state')
-- Not known: the store was wiped, and will know it again.
if not state or holds(evaluation, trial, token) then
  return 1
end
if state_of(evaluation, trial) ~= 'pending' or (state ~= 'running' and state ~= 'paused') or barred(worker) then
  return 0
end
-- It was given back for nothing: that does not count.
if redis.call('HGET', key('counted_token', evaluation), trial) == token then
  redis.call('HINCRBY', key('counted', evaluation), trial, -1)
  redis.call('HDEL', key('counted_token', evaluation), trial)
  redis.call('HDEL', key('avoid', evaluation), trial, trial .. ' since')
end
leave_share(evaluation, trial)
shift(evaluation, trial, 'pending', 'running')
-- What its batch runs by now, this one or a later one, is what counts.
local kind = kind_of(evaluation, trial)
if kind and redis.call('HEXISTS', key('loads', worker), evaluation .. ' ' .. batch) == 0 then
  enter_load(evaluation, batch, worker, trial, kind)
end
begin_lease(evaluation, trial, batch, worker, token, tonumber(attempt), tonumber(lease))
emit(evaluation, 'reclaimed', 'trial', trial, 'batch', batch, 'worker', worker, 'token', token, 'attempt', attempt)
return 1
