-- ARGV: evaluation, batch, worker, message, then the trials to move into its share. Returns how many, -1: no evaluation.
local evaluation, batch, worker, message = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', key('evaluation', evaluation)) == 0 then
  return -1
end
local new = redis.call('HSETNX', key('batches', evaluation), batch, worker) == 1
if new then
  redis.call('HSET', key('batch_states', evaluation), batch, 'sent')
  redis.call('HSET', key('batch_since', evaluation), batch, NOW)
  redis.call('HSET', key('messages', evaluation), batch, message)
  seat_batch(evaluation, batch, worker, 'sent')
end
local moved = 0
for i = 5, #ARGV do
  if state_of(evaluation, ARGV[i]) == 'pending' then
    leave_share(evaluation, ARGV[i])
    enter_share(evaluation, ARGV[i], batch, 1)
    moved = moved + 1
  end
end
if new then
  emit(evaluation, 'batch_added', 'batch', batch, 'worker', worker, 'trials', #ARGV - 4)
end
return moved
