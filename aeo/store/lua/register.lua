-- ARGV: id, info as JSON, instance, boot, first heartbeat as JSON, its life in ms.
-- Returns '' when done, else the info of the live worker that has the id.
local id, info, instance, boot, beat, life = unpack(ARGV)
local worker = key('worker', id)
local live = redis.call('EXISTS', key('beat', id)) == 1
if live and redis.call('HGET', worker, 'instance') ~= instance then
  return redis.call('HGET', key('workers'), id)
end
redis.call('HSET', key('workers'), id, info)
redis.call('HSET', worker, 'instance', instance, 'boot', boot)
-- A drain ends with the process it was for; a pause is a person's, and stays.
if redis.call('HGET', worker, 'state') == 'draining' then
  redis.call('HDEL', worker, 'state', 'note')
end
-- From now on the id is taken, so that of two that register at once only one gets it.
redis.call('SET', key('beat', id), NOW .. ' ' .. beat, 'PX', life)
return ''
