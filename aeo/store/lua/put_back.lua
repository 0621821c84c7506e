-- ARGV: name of the take. Puts its arrival behind all others. Returns 1 when it was there.
local item = redis.call('HGET', key('taken'), ARGV[1])
if not item then
  return 0
end
redis.call('RPUSH', key('inbox'), item)
redis.call('HDEL', key('taken'), ARGV[1])
return 1
