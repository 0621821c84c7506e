-- ARGV: evaluation, outcome, row before the trial's name, row after it, how many at most. Returns how many.
local evaluation, outcome, before, after, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local done = 0
local batches = redis.call('HKEYS', key('batches', evaluation))
batches[#batches + 1] = ''
for _, batch in ipairs(batches) do
  if done < most then
    for _, trial in ipairs(redis.call('ZRANGE', key('share', evaluation, batch), 0, most - done - 1)) do
      local row = before .. trial .. after
      leave_share(evaluation, trial)
      shift(evaluation, trial, 'pending', 'done')
      redis.call('HSET', key('rows', evaluation), trial, ' ' .. row)
      redis.call('RPUSH', key('order', evaluation), trial)
      emit(evaluation, 'committed', 'trial', trial, 'outcome', outcome, 'reason', 'cancelled before it ran', 'row', row)
      done = done + 1
    end
  end
end
if done > 0 then
  count(evaluation, 'outcome:' .. outcome, done)
end
return done
