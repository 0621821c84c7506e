-- The rules of `aeo.core.leave`, for the script that claims.

-- Whether an evaluation has a worker that is faster than this one.
local function is_slow(evaluation, worker)
  local told = redis.call('HMGET', key('speeds', evaluation), worker, ' fastest')
  return told[1] and told[2] and tonumber(told[2]) / 1000 >= FASTER * (tonumber(told[1]) / 1000)
end

-- What a batch leaves to faster ones, see `aeo.core.leave`; nil where its worker is no slower than others.
local function leaving(evaluation, batch, worker)
  if not is_slow(evaluation, worker) then
    return nil
  end
  local found, speeds, power = { left = false }, {}, nil
  local told = redis.call('HGETALL', key('speeds', evaluation))
  for i = 1, #told, 2 do
    local speed = tonumber(told[i + 1]) / 1000
    if told[i] == ' power' then
      power = speed
    elseif told[i] ~= ' fastest' then
      speeds[told[i]] = speed
    end
  end
  local mine, fastest, pending, horizon = speeds[worker], {}, nil, nil
  local since = redis.call('HGET', key('leaves', evaluation), batch)
  local waited = since and NOW - tonumber(since) or 0

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
  local function work()
    if not pending then
      pending = 0
      local shares = redis.call('ZRANGE', key('left', evaluation), 0, -1, 'WITHSCORES')
      for i = 2, #shares, 2 do
        pending = pending + tonumber(shares[i])
      end
    end
    return pending
  end

  -- Milliseconds until all else is done, at least.
  local function within()
    if not horizon then
      local all, longest = work(), 0
      for _, name in ipairs(redis.call('ZRANGE', key('leases', evaluation), 0, -1)) do
        local run = claim_of(evaluation, name)
        if run and run.batch ~= batch then
          local speed = speeds[run.worker] or 1
          local rest = math.max(0, estimate_of(evaluation, name) / speed - (NOW - run.started_at))
          all, longest = all + rest * speed, math.max(longest, rest)
        end
      end
      horizon = math.max(all / power, longest)
    end
    return horizon
  end

  -- The place in a queue from which on nothing is left, and the most milliseconds of what is not. `plain`: the first of
  -- it may run here.
  function found.begin(queue, kind, plain)
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then
      return 0, math.huge
    end
    fastest[kind or ''] = fastest[kind or ''] or faster(first)
    local best = fastest[kind or '']
    if best == 0 then
      return 0, math.huge
    end
    local gap = estimate_of(evaluation, redis.call('ZRANGE', queue, -1, -1)[1]) / best / 2
    local function most(time)
      return mine * math.max(SLACK * (time + gap), waited / (1 - mine / best) / PATIENT)
    end
    -- What runs need not be looked at while that much waits.
    if plain and estimate_of(evaluation, first) <= most(work() / power) then
      return 0, math.huge
    end
    local longest = most(within())
    local low, high = 0, estimate_of(evaluation, first) <= longest and 0 or redis.call('ZCARD', queue)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if estimate_of(evaluation, redis.call('ZRANGE', queue, middle, middle)[1]) <= longest then
        high = middle
      else
        low = middle + 1
      end
    end
    found.left = found.left or low > 0
    return low, longest
  end

  return found
end
