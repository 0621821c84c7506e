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

-- What recovery believes after a wipe. Only the controller's scripts tell it, which can read the seal; a worker can
-- write any event.
local SEALED = { submitted = true, moved = true, committed = true, carried = true, stopped = true, recovered = true }

local function emit(evaluation, kind, ...)
  local seal = SEALED[kind] and redis.call('GET', key('seal'))
  local head = { 'evaluation', evaluation, 'kind', kind, 'at', NOW }
  if seal then
    head[7], head[8] = 'seal', seal
  end
  for _, field in ipairs({ ... }) do
    head[#head + 1] = field
  end
  redis.call('XADD', key('events'), '*', unpack(head))
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

-- Number of the kind of a trial; nil where nothing is to be said of any.
local function kind_of(evaluation, trial)
  local kind = redis.call('HGET', key('kind', evaluation), trial)
  return kind or (status_of(evaluation, 'kinds') == '1' and '0') or nil
end

-- What a trial of a kind takes: cpus/1000, memory, disk and the model; kept for the length of the script.
local read_kinds = {}
local function kind_parts(evaluation, kind)
  local name = evaluation .. ' ' .. kind
  local parts = read_kinds[name]
  if not parts then
    local text = redis.call('HGET', key('kinds', evaluation), kind) or '0 0 0 '
    local cpus, memory, disk, model = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
    parts = { tonumber(cpus), tonumber(memory), tonumber(disk), model = model }
    parts.any = parts[1] > 0 or parts[2] > 0 or parts[3] > 0
    read_kinds[name] = parts
  end
  return parts
end

-- A limit's key is a model, its provider, or anything between them.
local function covers(name, model)
  return model == name or string.sub(model, 1, #name + 1) == name .. '/'
end

-- Key to { trials, per minute }; empty where there is no limit.
local read_limits
local function limits()
  if not read_limits then
    read_limits = {}
    local found = redis.call('HGETALL', key('limits'))
    for i = 1, #found, 2 do
      local most, per_minute = string.match(found[i + 1], '^(%S+) (%S+)$')
      read_limits[found[i]] = { tonumber(most), tonumber(per_minute) }
    end
  end
  return read_limits
end

-- A batch runs one trial at a time: what it ran before takes nothing any more, even if its result is still on its way.
-- `trial`: only if it is this one.
local function leave_load(evaluation, batch, worker, trial)
  local loads, seat = key('loads', worker), evaluation .. ' ' .. batch
  local text = redis.call('HGET', loads, seat)
  if not text then
    return
  end
  local kind, runs = string.match(text, '^(%S+) (.*)$')
  if trial and trial ~= runs then
    return
  end
  redis.call('HDEL', loads, seat)
  local model = kind_parts(evaluation, kind).model
  if model ~= '' then
    for name in pairs(limits()) do
      if covers(name, model) then
        redis.call('SREM', key('using', name), seat)
      end
    end
  end
end

local function enter_load(evaluation, batch, worker, trial, kind)
  local seat = evaluation .. ' ' .. batch
  leave_load(evaluation, batch, worker)
  redis.call('HSET', key('loads', worker), seat, kind .. ' ' .. trial)
  local model = kind_parts(evaluation, kind).model
  if model ~= '' then
    for name in pairs(limits()) do
      if covers(name, model) then
        redis.call('SADD', key('using', name), seat)
      end
    end
  end
end

-- Where a batch is, for its worker: `state` sent, started or ended.
local function seat_batch(evaluation, batch, worker, state)
  local seat = evaluation .. ' ' .. batch
  if state == 'sent' then
    redis.call('ZADD', key('waiting', worker), NOW, seat)
  else
    redis.call('ZREM', key('waiting', worker), seat)
  end
  if state == 'started' then
    redis.call('SADD', key('working', worker), seat)
  else
    redis.call('SREM', key('working', worker), seat)
    leave_load(evaluation, batch, worker)
  end
end

-- `kinds`: of the evaluation, if it is known already.
local function leave_share(evaluation, trial, kinds)
  local batch = redis.call('HGET', key('where', evaluation), trial)
  if not batch then
    return
  end
  local share, left = key('share', evaluation, batch), key('left', evaluation)
  redis.call('HDEL', key('where', evaluation), trial)
  redis.call('ZREM', share, trial)
  local kind = (kinds or 2) > 1 and redis.call('HGET', key('kind', evaluation), trial)
  if kind then
    redis.call('ZREM', key('queue', evaluation, batch, kind), trial)
    redis.call('HINCRBY', key('kind_left', evaluation), kind, -1)
  end
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
  local place = (tonumber(edge[2]) or 0) + step
  redis.call('ZADD', share, place, trial)
  local kind = redis.call('HGET', key('kind', evaluation), trial)
  if kind then
    redis.call('ZADD', key('queue', evaluation, batch, kind), place, trial)
    redis.call('HINCRBY', key('kind_left', evaluation), kind, 1)
  end
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
local function end_lease(evaluation, claim)
  redis.call('ZREM', key('leases', evaluation), claim.trial)
  redis.call('HDEL', key('phases', evaluation), claim.trial)
  redis.call('SREM', key('worker_leases', claim.worker), evaluation .. ' ' .. claim.trial)
  leave_load(evaluation, claim.batch, claim.worker, claim.trial)
end

local function end_claim(evaluation, trial)
  local claim = claim_of(evaluation, trial)
  if claim then
    end_lease(evaluation, claim)
    redis.call('HDEL', key('tokens', evaluation), claim.token)
    redis.call('HDEL', key('claims', evaluation), trial)
  end
end
