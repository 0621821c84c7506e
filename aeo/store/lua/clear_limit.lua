-- ARGV: key of a model provider. Returns 1 when it had a limit.
local name = ARGV[1]
redis.call('DEL', key('using', name))
redis.call('HDEL', key('paced'), name)
return redis.call('HDEL', key('limits'), name)
