-- ARGV: name of this take. Returns the arrival as JSON, or nil. The same take asked again gets the same arrival.
local item = redis.call('HGET', key('taken'), ARGV[1])
if not item then
  item = redis.call('LPOP', key('inbox'))
  if item then
    redis.call('HSET', key('taken'), ARGV[1], item)
  end
end
return item
