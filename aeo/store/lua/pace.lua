-- The rules of `aeo.core.leave`, for the script that claims.

-- Whether an evaluation has a worker that is faster than this one.
local function is_slow(evaluation, worker)
  local told = redis.call('HMGET', key('speeds', evaluation), worker, ' fastest')
  return told[1] and told[2] and tonumber(told[2]) / 1000 >= FASTER * (tonumber(told[1]) / 1000)
end

-- Whether a batch that waits for a slot would leave what waits to faster ones, as it said when it had one.
local function is_resting(evaluation, batch, worker)
  local rests = redis.call('HGET', key('leaves', evaluation), batch .. ' rests')
  return rests and NOW < tonumber(rests) and is_slow(evaluation, worker)
end

-- What a batch leaves to faster ones, see `aeo.core.leave`; nil where its worker is no slower than others.
local function leaving(evaluation, batch, worker)
  if not is_slow(evaluation, worker) then
    return nil
  end
  local found, speeds, power = { left = 0 }, {}, 1
  local told = redis.call('HGETALL', key('speeds', evaluation))
  for i = 1, #told, 2 do
    -- No speed is 0, whatever was told.
    local speed = math.max(tonumber(told[i + 1]), 1) / 1000
    if told[i] == ' power' then
      power = speed
    elseif told[i] ~= ' fastest' then
      speeds[told[i]] = speed
    end
  end
  local mine, fastest, pending, horizon = speeds[worker], {}, nil, nil
  local since = tonumber(redis.call('HGET', key('leaves', evaluation), batch) or nil)
  local waited, patience = since and NOW - since or 0, math.huge

  local function faster(trial)
    local best = 0
    for other, speed in pairs(speeds) do
      if speed >= FASTER * mine and speed > best
        and redis.call('SISMEMBER', key('unfit', evaluation, other), trial) == 0 then
        best = speed
      end
    end
    return best
  end

  -- Milliseconds of what waits, at speed 1.
  local shares = 0
  local function work()
    if not pending then
      pending = 0
      local left = redis.call('ZRANGE', key('left', evaluation), 0, -1, 'WITHSCORES')
      for i = 2, #left, 2 do
        pending, shares = pending + tonumber(left[i]), shares + 1
      end
    end
    return pending
  end

  -- What somebody saw a moment ago: when, milliseconds of all work, and until the last of what runs is done.
  local function seen()
    local text = redis.call('HGET', key('leaves', evaluation), ' horizon')
    local at, all, longest, fresh = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)$')
    if at and NOW >= tonumber(at) and NOW - at < tonumber(fresh) then
      return math.max(all / power - (NOW - at), longest - (NOW - at), 0)
    end
  end

  -- Milliseconds until all else is done, at least.
  local function within()
    horizon = horizon or seen()
    if not horizon then
      local all, longest, runs = work(), 0, redis.call('ZRANGE', key('leases', evaluation), 0, -1)
      for _, name in ipairs(runs) do
        local run = claim_of(evaluation, name)
        if run and run.batch ~= batch then
          local speed = speeds[run.worker] or 1
          local rest = math.max(0, estimate_of(evaluation, name) / speed - (NOW - run.started_at))
          all, longest = all + rest * speed, math.max(longest, rest)
        end
      end
      horizon = math.max(all / power, longest)
      found.horizon = string.format('%.0f %.17g %.17g %.0f', NOW, all, longest,
        math.min(FRESH_MS * (#runs + shares), LONGEST_FRESH_MS))
    end
    return horizon
  end

  local function last_of(queue)
    return estimate_of(evaluation, redis.call('ZRANGE', queue, -1, -1)[1])
  end

  -- The most milliseconds of what is not left of a queue. `plain`: its first may run here.
  function found.longest(queue, kind, plain)
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then
      return math.huge
    end
    fastest[kind or ''] = fastest[kind or ''] or faster(first)
    local best = fastest[kind or '']
    if best == 0 then
      return math.huge
    end
    local gap = last_of(queue) / best / 2
    local function most(time)
      return mine * math.max(SLACK * (time + gap), waited / (1 - mine / best) / PATIENT)
    end
    -- What runs need not be looked at while that much waits.
    if plain and not horizon then
      horizon = seen()
      if not horizon and estimate_of(evaluation, first) <= most(work() / power) then
        return math.huge
      end
    end
    return most(within())
  end

  -- Something of this queue is left: for how long at most.
  function found.leave(queue, kind)
    found.left = found.left + 1
    patience = math.min(patience, PATIENT * last_of(queue) * (1 / mine - 1 / fastest[kind or '']))
  end

  -- The place behind the first of a queue from which on nothing is left.
  function found.begin(queue, kind, longest)
    local low, high = 1, redis.call('ZCARD', queue)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if estimate_of(evaluation, redis.call('ZRANGE', queue, middle, middle)[1]) <= longest then
        high = middle
      else
        low = middle + 1
      end
    end
    if low > 1 or estimate_of(evaluation, redis.call('ZRANGE', queue, 0, 0)[1]) > longest then
      found.leave(queue, kind)
    end
    return low
  end

  -- Keep that this batch left something, and until when nobody makes way for it.
  function found.keep()
    local over = (since or NOW) + patience - NOW
    local rest = math.min(math.max(waited, REST_MS), LONGEST_REST_MS)
    rest = over > 0 and math.min(math.max(over, SHORTEST_REST_MS), rest) or rest
    redis.call('HSET', key('leaves', evaluation), batch, since or NOW, batch .. ' rests', math.ceil(NOW + rest))
  end

  return found
end
