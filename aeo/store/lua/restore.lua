-- Put back what was taken and not finished. Returns how many.
local items = redis.call('HVALS', key('taken'))
for _, item in ipairs(items) do
  redis.call('LPUSH', key('inbox'), item)
end
redis.call('DEL', key('taken'))
return #items
