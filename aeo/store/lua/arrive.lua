-- The message of a batch has arrived. ARGV: evaluation, batch, worker, ms for which a trial may be passed over.
-- Returns 1 when it is to queue again, behind one that goes before it.
local evaluation, batch, worker = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', key('batch_states', evaluation), batch) ~= 'sent' then
  return 0
end
local view = look(evaluation, batch, worker, tonumber(ARGV[4]))
local status = view.status(evaluation)
local turned = string.match(redis.call('HGET', key('turned', evaluation), batch) or '', '^%d+')
if not status.runs or status.pending == 0 or not view.gives_way(nil, tonumber(turned)) then
  return 0
end
redis.call('HSET', key('batch_since', evaluation), batch, NOW)
redis.call('HSET', key('turned', evaluation), batch, NOW .. ' ')
seat_batch(evaluation, batch, worker, 'sent')
emit(evaluation, 'batch_turned', 'batch', batch, 'worker', worker)
return 1
