-- Head of every script. A script is one transition: it checks, moves, counts and emits its event, or does nothing.

local function key(noun, ...)
  return string.format(TEMPLATES[noun], ...)
end

local function read_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Milliseconds on the server's clock.
local NOW = read_clock()

local function emit(evaluation, kind, ...)
  redis.call('XADD', key('events'), '*', 'evaluation', evaluation, 'kind', kind, 'at', NOW, ...)
end

local function status_of(evaluation, name)
  return redis.call('HGET', key('evaluation', evaluation), name)
end

local function count(evaluation, name, by)
  redis.call('HINCRBY', key('evaluation', evaluation), name, by)
end

local function state_of(evaluation, trial)
  return redis.call('HGET', key('trials', evaluation), trial)
end

-- The only place where a trial's state changes, so that the counters cannot drift from the states.
local function shift(evaluation, trial, from, to)
  redis.call('HSET', key('trials', evaluation), trial, to)
  count(evaluation, from, -1)
  count(evaluation, to, 1)
end

-- Whether a person removed this worker's process, and nobody let it in again.
local function barred(worker)
  local removed = key('removed')
  if redis.call('EXISTS', removed) == 0 then
    return false
  end
  local boot = redis.call('HGET', key('worker', worker), 'boot')
  if boot then
    return redis.call('HEXISTS', removed, worker .. ' ' .. boot) == 1
  end
  for _, field in ipairs(redis.call('HKEYS', removed)) do
    if string.sub(field, 1, #worker + 1) == worker .. ' ' then
      return true
    end
  end
  return false
end

local function estimate_of(evaluation, trial)
  return tonumber(redis.call('HGET', key('estimates', evaluation), trial) or 0)
end

local function leave_share(evaluation, trial)
  local batch = redis.call('HGET', key('where', evaluation), trial)
  if not batch then
    return
  end
  local share, left = key('share', evaluation, batch), key('left', evaluation)
  redis.call('HDEL', key('where', evaluation), trial)
  redis.call('ZREM', share, trial)
  if redis.call('EXISTS', share) == 0 then
    redis.call('ZREM', left, batch)
  else
    redis.call('ZINCRBY', left, -estimate_of(evaluation, trial), batch)
  end
end

-- `step` -1 puts it before the share's first trial, 1 behind its last.
local function enter_share(evaluation, trial, batch, step)
  local share = key('share', evaluation, batch)
  local rank = step < 0 and 0 or -1
  local edge = redis.call('ZRANGE', share, rank, rank, 'WITHSCORES')
  redis.call('ZADD', share, (tonumber(edge[2]) or 0) + step, trial)
  redis.call('HSET', key('where', evaluation), trial, batch)
  redis.call('ZINCRBY', key('left', evaluation), estimate_of(evaluation, trial), batch)
end

local function holds(evaluation, trial, token)
  return redis.call('HGET', key('tokens', evaluation), token) == trial
end

local function claim_of(evaluation, trial)
  local text = redis.call('HGET', key('claims', evaluation), trial)
  return text and cjson.decode(text)
end

-- Returns the claim as JSON.
local function begin_lease(evaluation, trial, batch, worker, token, attempt, lease)
  local claim = cjson.encode({
    evaluation = evaluation, trial = trial, batch = batch, worker = worker,
    token = token, attempt = attempt, started_at = NOW,
  })
  redis.call('ZADD', key('leases', evaluation), NOW + lease, trial)
  redis.call('HSET', key('claims', evaluation), trial, claim)
  redis.call('HSET', key('tokens', evaluation), token, trial)
  redis.call('SADD', key('worker_leases', worker), evaluation .. ' ' .. trial)
  return claim
end

-- The run no longer needs its lease: it arrived, or it ended for good.
local function end_lease(evaluation, trial, worker)
  redis.call('ZREM', key('leases', evaluation), trial)
  redis.call('HDEL', key('phases', evaluation), trial)
  redis.call('SREM', key('worker_leases', worker), evaluation .. ' ' .. trial)
end

local function end_claim(evaluation, trial)
  local claim = claim_of(evaluation, trial)
  if claim then
    end_lease(evaluation, trial, claim.worker)
    redis.call('HDEL', key('tokens', evaluation), claim.token)
    redis.call('HDEL', key('claims', evaluation), trial)
  end
end
