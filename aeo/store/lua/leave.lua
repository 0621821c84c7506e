-- ARGV: id, boot. Returns 1 when this boot was the registered one and is gone now.
local id, boot = unpack(ARGV)
local worker = key('worker', id)
if redis.call('HGET', worker, 'boot') ~= boot then
  return 0
end
redis.call('DEL', key('beat', id))
-- Without its boot a heartbeat still on its way counts no more. Weight, pause and note are a person's, and stay. The list
-- of all workers is not this one's to change: who reads it leaves out who has left.
redis.call('HDEL', worker, 'boot', 'instance', 'info')
redis.call('HSET', worker, 'left', NOW)
return 1
