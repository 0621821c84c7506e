-- ARGV: evaluation, trial, token, reason, most requeues, whether this one counts (1 or 0). Returns again, exhausted or stale.
local evaluation, trial, token, reason, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local counts = ARGV[6] == '1'
if not holds(evaluation, trial, token) then
  return 'stale'
end
if counts and tonumber(redis.call('HGET', key('counted', evaluation), trial) or 0) >= most then
  return 'exhausted'
end

local claim = claim_of(evaluation, trial)
local states = redis.call('HGETALL', key('batch_states', evaluation))
-- A run that outlived a wipe of the store may name a batch that is not known: then the trial is in nobody's share.
local known = redis.call('HEXISTS', key('batches', evaluation), claim.batch) == 1
local target, best = known and claim.batch or '', -1
for i = 1, #states, 2 do
  local batch, state = states[i], states[i + 1]
  if state ~= 'ended' then
    local worker = redis.call('HGET', key('batches', evaluation), batch)
    local score = state == 'started' and 1 or 0
    if worker ~= claim.worker then
      score = score + 2
    end
    if redis.call('SISMEMBER', key('unfit', evaluation, worker), trial) == 0 then
      score = score + 4
    end
    if score > best then
      target, best = batch, score
    end
  end
end

end_claim(evaluation, trial)
shift(evaluation, trial, state_of(evaluation, trial), 'pending')
enter_share(evaluation, trial, target, -1)
redis.call('HINCRBY', key('requeues', evaluation), trial, 1)
if counts then
  redis.call('HINCRBY', key('counted', evaluation), trial, 1)
  redis.call('HSET', key('avoid', evaluation), trial, claim.worker, trial .. ' since', NOW)
  redis.call('HSET', key('counted_token', evaluation), trial, token)
end
count(evaluation, 'requeues', 1)
emit(evaluation, 'requeued', 'trial', trial, 'batch', target, 'worker', claim.worker, 'token', token,
  'attempt', claim.attempt, 'reason', reason)
return 'again'
