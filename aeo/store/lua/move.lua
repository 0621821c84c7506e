-- ARGV: evaluation, to, whether that is final (1 or 0), reason, by whom, the states it may come from. Returns 1 when moved.
local evaluation, to, final, reason, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local from = status_of(evaluation, 'state')
local allowed = false
for i = 6, #ARGV do
  allowed = allowed or ARGV[i] == from
end
if not allowed then
  return 0
end
local status = key('evaluation', evaluation)
redis.call('HSET', status, 'state', to)
if reason ~= '' then
  redis.call('HSET', status, 'reason', reason)
end
if final == '1' then
  redis.call('HSET', status, 'finished_at', NOW)
end
local submitted = redis.call('ZSCORE', key('evaluations'), evaluation)
redis.call('ZREM', key('in_state', from), evaluation)
redis.call('ZADD', key('in_state', to), submitted, evaluation)
emit(evaluation, 'moved', 'from', from, 'state', to, 'reason', reason, unpack(by ~= '' and { 'by', by } or {}))
return 1
