-- ARGV: id, boot, heartbeat as JSON, its life in ms, sample as JSON, most samples kept, their life in ms.
-- Returns the state wanted, 'removed' when a person removed this boot, '' when it is not registered.
local id, boot, beat, life, sample, most, sample_life = unpack(ARGV)
if redis.call('HEXISTS', key('removed'), id .. ' ' .. boot) == 1 then
  return 'removed'
end
local worker = key('worker', id)
if redis.call('HGET', worker, 'boot') ~= boot then
  return ''
end
redis.call('SET', key('beat', id), NOW .. ' ' .. beat, 'PX', life)

-- The first heartbeat of each minute is kept.
local samples = key('samples', id)
local last = redis.call('LINDEX', samples, 0)
local minute = last and math.floor(tonumber(string.match(last, '^%d+')) / 60000)
if minute ~= math.floor(NOW / 60000) then
  redis.call('LPUSH', samples, NOW .. ' ' .. sample)
  redis.call('LTRIM', samples, 0, most - 1)
  redis.call('PEXPIRE', samples, sample_life)
end
return redis.call('HGET', worker, 'state') or 'online'
