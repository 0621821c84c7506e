-- ARGV: id, boot, heartbeat as JSON, its life in ms. Returns the state wanted, '' when not registered.
local id, boot, beat, life = unpack(ARGV)
local worker = key('worker', id)
if redis.call('HGET', worker, 'boot') ~= boot then
  return ''
end
redis.call('SET', key('beat', id), NOW .. ' ' .. beat, 'PX', life)
return redis.call('HGET', worker, 'state') or 'online'
