-- Take an evaluation out of sight. ARGV: id. Returns 1 when there was one.
local id = ARGV[1]
local name, state = status_of(id, 'name'), status_of(id, 'state')
if not name then
  return 0
end
for _, trial in ipairs(redis.call('ZRANGE', key('leases', id), 0, -1)) do
  end_claim(id, trial)
end
local batches = redis.call('HGETALL', key('batches', id))
for i = 1, #batches, 2 do
  seat_batch(id, batches[i], batches[i + 1], 'ended')
end
redis.call('ZREM', key('evaluations'), id)
redis.call('ZREM', key('named', name), id)
redis.call('ZREM', key('in_state', state), id)
local parent = status_of(id, 'parent') or ''
if parent ~= '' then
  redis.call('ZREM', key('reruns', parent), id)
end
redis.call('DEL', key('evaluation', id))
return 1
