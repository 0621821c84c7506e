-- ARGV: id, boot. Returns 1 when this boot was the registered one and is gone now.
local id, boot = unpack(ARGV)
local worker = key('worker', id)
if redis.call('HGET', worker, 'boot') ~= boot then
  return 0
end
redis.call('HDEL', key('workers'), id)
redis.call('DEL', key('beat', id))
-- Without its boot a heartbeat still on its way counts no more. Weight, pause and note are a person's, and stay.
redis.call('HDEL', worker, 'boot', 'instance')
return 1
