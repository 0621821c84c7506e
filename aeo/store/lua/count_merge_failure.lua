-- ARGV: evaluation. Failures within a minute count as one. Returns how many, 0 for one that is not known.
local status = key('evaluation', ARGV[1])
if redis.call('HEXISTS', status, 'id') == 0 then
  return 0
end
local last = tonumber(redis.call('HGET', status, 'merge_failed_at') or 0)
if NOW - last > 60000 then
  redis.call('HSET', status, 'merge_failed_at', NOW)
  return redis.call('HINCRBY', status, 'merge_failures', 1)
end
return tonumber(redis.call('HGET', status, 'merge_failures'))
