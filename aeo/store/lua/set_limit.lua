-- ARGV: key of a model provider, trials at once, trials begun in a minute (0: any number of either).
local name, most, per_minute = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', key('limits'), name) == 0 then
  -- Nobody counted until now: what runs already is read once.
  redis.call('DEL', key('using', name))
  for _, state in ipairs({ 'running', 'paused', 'cancelling' }) do
    for _, id in ipairs(redis.call('ZRANGE', key('in_state', state), 0, -1)) do
      local batches = redis.call('HGETALL', key('batches', id))
      for i = 1, #batches, 2 do
        local seat = id .. ' ' .. batches[i]
        local kind = string.match(redis.call('HGET', key('loads', batches[i + 1]), seat) or '', '^%S+')
        if kind and covers(name, kind_parts(id, kind).model) then
          redis.call('SADD', key('using', name), seat)
        end
      end
    end
  end
end
redis.call('HSET', key('limits'), name, most .. ' ' .. per_minute)
redis.call('HDEL', key('paced'), name)
return 1
