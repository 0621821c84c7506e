-- ARGV: id, info as JSON, instance, boot, first heartbeat as JSON, its life in ms.
-- Returns '' when done, 'removed' when a person removed this boot, else the info of the live worker that has the id.
local id, info, instance, boot, beat, life = unpack(ARGV)
if redis.call('HEXISTS', key('removed'), id .. ' ' .. boot) == 1 then
  return 'removed'
end
local worker = key('worker', id)
local live = redis.call('EXISTS', key('beat', id)) == 1
if live and redis.call('HGET', worker, 'instance') ~= instance then
  return redis.call('HGET', key('workers'), id)
end
-- A restart is welcome. Its local root is one process's alone, so its earlier boots are no more.
local removed = redis.call('HGETALL', key('removed'))
for i = 1, #removed, 2 do
  local ours = string.sub(removed[i], 1, #id + 1) == id .. ' '
  if ours and string.match(removed[i + 1], '^%S*') == instance then
    redis.call('HDEL', key('removed'), removed[i])
  end
end
redis.call('HSET', key('workers'), id, info)
redis.call('HSET', worker, 'instance', instance, 'boot', boot, 'info', info)
redis.call('HDEL', worker, 'left')
-- A drain ends with the process it was for; a pause is a person's, and stays.
if redis.call('HGET', worker, 'state') == 'draining' then
  redis.call('HDEL', worker, 'state', 'note')
end
local weight = redis.call('HGET', worker, 'weight')
if redis.call('HGET', worker, 'state') ~= 'paused' and not (weight and tonumber(weight) == 0) then
  redis.call('SREM', key('idle'), id)
end
-- From now on the id is taken, so that of two that register at once only one gets it.
redis.call('SET', key('beat', id), NOW .. ' ' .. beat, 'PX', life)
return ''
