-- ARGV: evaluation, batch, worker, token, lease in ms. Returns the claim as JSON, or nil.
local evaluation, batch, worker, token, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

-- The same call again, its first answer lost with the connection.
local held = redis.call('HGET', key('tokens', evaluation), token)
if held then
  return redis.call('HGET', key('claims', evaluation), held)
end

-- A batch this store does not know (it was wiped) or took for dead: its successor is another one.
local own = redis.call('HGET', key('batch_states', evaluation), batch)
if not own or own == 'ended' then
  return false
end

local mode = redis.call('HGET', key('worker', worker), 'state')
if status_of(evaluation, 'state') ~= 'running' or mode == 'paused' or mode == 'draining' or barred(worker) then
  return false
end

local unfit = key('unfit', evaluation, worker)
local fits_all = redis.call('EXISTS', unfit) == 0
local avoid = key('avoid', evaluation)
local shun = redis.call('EXISTS', avoid) == 1
local STEP = 100

-- A trial that failed on this worker is left to others for a while, if another one works on this evaluation.
local SHUN_MS = 30000
if shun then
  shun = false
  local states = redis.call('HGETALL', key('batch_states', evaluation))
  for i = 1, #states, 2 do
    local other = redis.call('HGET', key('batches', evaluation), states[i])
    if states[i + 1] == 'started' and other ~= worker then
      local wanted = redis.call('HGET', key('worker', other), 'state')
      shun = shun or (wanted ~= 'paused' and wanted ~= 'draining')
    end
  end
end

local function shunned(trial)
  local mark = shun and redis.call('HGET', avoid, trial)
  return mark and mark == worker and tonumber(redis.call('HGET', avoid, trial .. ' since')) > NOW - SHUN_MS
end

local function first_fit(share)
  if fits_all and not shun then
    return redis.call('ZRANGE', share, 0, 0)[1]
  end
  local from = 0
  while true do
    local trials = redis.call('ZRANGE', share, from, from + STEP - 1)
    if #trials == 0 then
      return nil
    end
    local bad = redis.call('SMISMEMBER', unfit, unpack(trials))
    for i, trial in ipairs(trials) do
      if bad[i] == 0 and not shunned(trial) then
        return trial
      end
    end
    from = from + STEP
  end
end

local trial = first_fit(key('share', evaluation, batch))
if not trial then
  local others = redis.call('ZREVRANGE', key('left', evaluation), 0, fits_all and not shun and 0 or -1)
  for _, other in ipairs(others) do
    if other ~= batch then
      trial = first_fit(key('share', evaluation, other))
      if trial then
        break
      end
    end
  end
end
if not trial then
  return false
end

local attempt = 1 + tonumber(redis.call('HGET', key('requeues', evaluation), trial) or 0)
leave_share(evaluation, trial)
redis.call('HDEL', avoid, trial, trial .. ' since')
shift(evaluation, trial, 'pending', 'running')
local claim = begin_lease(evaluation, trial, batch, worker, token, attempt, lease)
emit(evaluation, 'claimed', 'trial', trial, 'batch', batch, 'worker', worker, 'token', token, 'attempt', attempt)
return claim
