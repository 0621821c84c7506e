-- Make a staged evaluation visible, all at once.
-- ARGV: id, name, submitted in ms, number of status fields, the fields and values, then staged and final keys in pairs.
-- Returns '' when done, else the id of the evaluation it clashes with.
local id, name, submitted, fields = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('HEXISTS', key('evaluation', id), 'id') == 1 then
  return id
end
local function final(state)
  return state == 'succeeded' or state == 'failed' or state == 'cancelled'
end
local at = 5
local state
for i = at, at + 2 * fields - 1, 2 do
  if ARGV[i] == 'state' then
    state = ARGV[i + 1]
  end
end
for _, other in ipairs(final(state) and {} or redis.call('ZREVRANGE', key('named', name), 0, -1)) do
  local present = status_of(other, 'state')
  if present and not final(present) then
    return other
  end
end

for i = at, at + 2 * fields - 1, 2 do
  redis.call('HSET', key('evaluation', id), ARGV[i], ARGV[i + 1])
end
for i = at + 2 * fields, #ARGV, 2 do
  redis.call('RENAME', ARGV[i], ARGV[i + 1])
  redis.call('PERSIST', ARGV[i + 1])
end
local batches = redis.call('HGETALL', key('batches', id))
for i = 1, #batches, 2 do
  redis.call('HSET', key('batch_states', id), batches[i], 'sent')
  redis.call('HSET', key('batch_since', id), batches[i], NOW)
  seat_batch(id, batches[i], batches[i + 1], 'sent')
end
redis.call('ZADD', key('evaluations'), submitted, id)
redis.call('ZADD', key('named', name), submitted, id)
redis.call('ZADD', key('in_state', state), submitted, id)
local parent = status_of(id, 'parent') or ''
if parent ~= '' then
  redis.call('ZADD', key('reruns', parent), submitted, id)
end
local owner = status_of(id, 'owner') or ''
emit(id, 'submitted', 'name', name, 'total', status_of(id, 'total'), unpack(owner ~= '' and { 'by', owner } or {}))
return ''
