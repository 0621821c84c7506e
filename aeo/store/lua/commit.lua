-- ARGV: evaluation, trial, token, worker, attempt, outcome, row as JSON. Returns 1 first, 0 too late, -1 unknown.
local evaluation, trial, token, worker, attempt, outcome, row = unpack(ARGV)
local state = state_of(evaluation, trial)
if not state then
  return -1
end
if state == 'done' then
  local winner = redis.call('HGET', key('rows', evaluation), trial) or ''
  if token ~= '' and string.sub(winner, 1, #token + 1) == token .. ' ' then
    return 1
  end
  emit(evaluation, 'superseded', 'trial', trial, 'worker', worker, 'token', token, 'attempt', attempt)
  return 0
end

leave_share(evaluation, trial)
end_claim(evaluation, trial)
shift(evaluation, trial, state, 'done')
count(evaluation, 'outcome:' .. outcome, 1)
redis.call('HSET', key('rows', evaluation), trial, token .. ' ' .. row)
redis.call('RPUSH', key('order', evaluation), trial)
emit(evaluation, 'committed', 'trial', trial, 'worker', worker, 'token', token, 'attempt', attempt,
  'outcome', outcome, 'row', row)
return 1
