-- ARGV: a secret. Returns the controller's seal, made of the time and the secret if there is none yet: events from before
-- this moment have none.
redis.call('SET', key('seal'), NOW .. '-' .. ARGV[1], 'NX')
return redis.call('GET', key('seal'))
