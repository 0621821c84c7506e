-- ARGV: evaluation, batch, to, the states it may come from. Returns 1 when moved.
local evaluation, batch, to = ARGV[1], ARGV[2], ARGV[3]
local from = redis.call('HGET', key('batch_states', evaluation), batch)
for i = 4, #ARGV do
  if ARGV[i] == from then
    redis.call('HSET', key('batch_states', evaluation), batch, to)
    redis.call('HSET', key('batch_since', evaluation), batch, NOW)
    local worker = redis.call('HGET', key('batches', evaluation), batch)
    seat_batch(evaluation, batch, worker, to)
    emit(evaluation, 'batch_' .. to, 'batch', batch, 'worker', worker)
    return 1
  end
end
return 0
