-- ARGV: evaluation, trial, token, lease in ms. Returns the standing.
local evaluation, trial, token, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if not holds(evaluation, trial, token) then
  return 'lost'
end
-- XX: a result that arrived needs no lease any more.
redis.call('ZADD', key('leases', evaluation), 'XX', NOW + lease, trial)
return status_of(evaluation, 'state') == 'cancelling' and 'cancel' or 'held'
