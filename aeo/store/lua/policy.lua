-- The rules of `aeo.core.choose`, for the scripts that choose. Nothing here changes anything; each part is read once,
-- and only when it is asked for.

local function offered(worker)
  local info = redis.call('HGET', key('worker', worker), 'info')
  if not info then
    return nil
  end
  local capacity = cjson.decode(info).capacity
  local times = capacity.overcommit or 1
  local function offer(amount)
    return math.floor(amount * times + 1e-6)
  end
  local disk = offer(capacity.disk_mb or 0)
  return {
    offer(math.floor(capacity.cpus * 1000 + 0.5)), offer(capacity.memory_mb), disk > 0 and disk or math.huge,
  }
end

-- Whether a worker other than the one that asks is there and may claim; and whether it has a batch of an evaluation.
local function is_at_work(other)
  return redis.call('SISMEMBER', key('idle'), other) == 0
end

local function has_batch(other, evaluation)
  local workers = redis.call('HGETALL', key('batches', evaluation))
  for i = 1, #workers, 2 do
    if workers[i + 1] == other and redis.call('HGET', key('batch_states', evaluation), workers[i]) ~= 'ended' then
      return true
    end
  end
  return false
end

-- Whether a worker may claim as far as people say.
local function takes(worker)
  local told = redis.call('HMGET', key('worker', worker), 'state', 'weight')
  return told[1] ~= 'paused' and told[1] ~= 'draining' and not (told[2] and tonumber(told[2]) == 0)
end

local function has_seat(worker, evaluation)
  local seats = redis.call('SMEMBERS', key('working', worker))
  for _, seat in ipairs(redis.call('ZRANGE', key('waiting', worker), 0, -1)) do
    seats[#seats + 1] = seat
  end
  for _, seat in ipairs(seats) do
    if string.sub(seat, 1, #evaluation + 1) == evaluation .. ' ' then
      return true
    end
  end
  return false
end

-- The pool as one batch sees it.
local function look(evaluation, batch, worker, patience)
  local view = { seat = evaluation .. ' ' .. batch }
  local capacity, free, room, room_read, statuses, slots = nil, nil, nil, false, {}, nil

  function view.status(id)
    if not statuses[id] then
      -- One whose right has not come yet, or has gone, does not run as far as this worker is concerned.
      local read = redis.pcall('HMGET', key('evaluation', id), 'state', 'kinds', 'priority', 'pending', 'total')
      if read.err then
        read = {}
      end
      statuses[id] = {
        runs = read[1] == 'running', kinds = tonumber(read[2] or 0), priority = tonumber(read[3] or 0),
        pending = tonumber(read[4] or 0), untouched = read[4] == read[5],
      }
    end
    return statuses[id]
  end

  local function offers()
    if capacity == nil then
      capacity = offered(worker) or false
    end
    return capacity
  end

  -- What is free here of what trials declare, less what runs in the other slots.
  local function left()
    if not free then
      free = { offers()[1], offers()[2], offers()[3] }
      local loads = redis.call('HGETALL', key('loads', worker))
      for i = 1, #loads, 2 do
        if loads[i] ~= view.seat then
          local parts = kind_parts(string.match(loads[i], '^%S+'), string.match(loads[i + 1], '^%S+'))
          for d = 1, 3 do
            free[d] = free[d] - parts[d]
          end
        end
      end
    end
    return free
  end

  local function too_large(parts)
    return parts[1] > offers()[1] or parts[2] > offers()[2] or parts[3] > offers()[3]
  end

  function view.fits(parts)
    for d = 1, 3 do
      if parts[d] > 0 and parts[d] > left()[d] then
        return false
      end
    end
    return true
  end

  function view.allowed(model)
    if model == '' then
      return true
    end
    for name, limit in pairs(limits()) do
      if covers(name, model) then
        if limit[2] > 0 and tonumber(redis.call('HGET', key('paced'), name) or 0) > NOW then
          return false
        end
        if limit[1] > 0 then
          local using = redis.call('SCARD', key('using', name))
          if using >= limit[1] then
            using = using - redis.call('SISMEMBER', key('using', name), view.seat)
          end
          if using >= limit[1] then
            return false
          end
        end
      end
    end
    return true
  end

  -- The trial that this worker passed over first, while it still waits and a batch is here to run it.
  function view.room()
    if room_read then
      return room
    end
    room_read = true
    local text = redis.call('GET', key('room', worker))
    local of, trial, since = string.match(text or '', '^(%S+) (%S+) (%S+)$')
    if not of then
      return nil
    end
    view.had_room = { evaluation = of, trial = trial }
    if not view.status(of).runs or state_of(of, trial) ~= 'pending' or not offers() or not has_seat(worker, of) then
      return nil
    end
    -- Another one ran it meanwhile.
    if redis.call('HGET', key('rooms', of), trial) ~= worker then
      return nil
    end
    local parts = kind_parts(of, kind_of(of, trial))
    if not too_large(parts) then
      room = { evaluation = of, trial = trial, since = tonumber(since), parts = parts }
    end
    return room
  end

  -- Whether room is kept for it, against trials of this priority.
  function view.binds(kept, priority)
    return NOW - kept.since >= patience and view.status(kept.evaluation).priority >= priority
      and view.allowed(kept.parts.model)
  end

  local function leaves(kept, parts)
    for d = 1, 3 do
      if parts[d] > 0 and left()[d] - parts[d] < kept.parts[d] then
        return false
      end
    end
    return true
  end

  -- yes; tight: it does not fit now; later: a limit or kept room; never: it is too large.
  function view.verdict(id, parts)
    if not parts.any then
      return view.allowed(parts.model) and 'yes' or 'later'
    end
    if not offers() then
      return 'later'
    end
    if too_large(parts) then
      return 'never'
    end
    if not view.allowed(parts.model) then
      return 'later'
    end
    if not view.fits(parts) then
      return 'tight'
    end
    local kept = view.room()
    if kept and view.binds(kept, view.status(id).priority) and not leaves(kept, parts) then
      return 'later'
    end
    return 'yes'
  end

  -- Calls `see` with each kind that waits in an evaluation, until it returns true.
  function view.each_kind(id, see)
    local kinds = view.status(id).kinds
    if kinds <= 1 then
      return see(kinds == 1 and '0' or nil)
    end
    local counts = redis.call('HGETALL', key('kind_left', id))
    for i = 1, #counts, 2 do
      if tonumber(counts[i + 1]) > 0 and see(counts[i]) then
        return true
      end
    end
    return false
  end

  local function could_run(id)
    local kept = view.room()
    if kept and kept.evaluation == id and view.binds(kept, view.status(evaluation).priority)
      and view.fits(kept.parts) then
      return true
    end
    return view.each_kind(id, function(kind)
      return not kind or view.verdict(id, kind_parts(id, kind)) == 'yes'
    end)
  end

  -- Other evaluations with trials and a batch that waits for a slot here, and since when the last of them waits.
  -- `resting`: also those that would leave what waits to faster slots.
  local function rivals(resting)
    local found, order = {}, {}
    local waiting = redis.call('ZRANGE', key('waiting', worker), 0, -1, 'WITHSCORES')
    for i = 1, #waiting, 2 do
      local id, of = string.match(waiting[i], '^(%S+) (%S+)$')
      if id ~= evaluation and view.status(id).runs and view.status(id).pending > 0
        and (resting or not is_resting(id, of, worker)) then
        if not found[id] then
          order[#order + 1] = id
        end
        found[id] = tonumber(waiting[i + 1])
      end
    end
    return order, found
  end

  local function slots_of(id)
    if not slots then
      slots = {}
      for _, seat in ipairs(redis.call('SMEMBERS', key('working', worker))) do
        local of = string.match(seat, '^%S+')
        slots[of] = (slots[of] or 0) + 1
      end
    end
    return slots[id] or 0
  end

  -- Whether an evaluation that waits here goes first. `held`: ms for which this batch has its slot, nil when it has just
  -- arrived; `turned`: when it gave its turn last.
  function view.gives_way(held, turned)
    if redis.call('EXISTS', key('waiting', worker)) == 0 then
      return false
    end
    local priority = view.status(evaluation).priority
    local order, since = rivals()
    for _, id in ipairs(order) do
      local rival = view.status(id)
      if held or not turned or since[id] > turned then
        local equal = rival.priority == priority and slots_of(id) < slots_of(evaluation)
          -- Two that have not begun would give the slot to each other for ever.
          and (not held or held >= TURN_MS or (rival.untouched and not view.status(evaluation).untouched))
        local kept = equal and held and view.room()
        -- It has the slot for the trial that room was kept for.
        if kept and kept.evaluation == evaluation and view.binds(kept, priority) and view.fits(kept.parts) then
          equal = false
        end
        if (rival.priority > priority or equal) and could_run(id) then
          return true
        end
      end
    end
    local kept = held and view.room()
    return (kept and kept.evaluation ~= evaluation and select(2, rivals(true))[kept.evaluation] and view.binds(kept, priority)
      and view.fits(kept.parts)) and true or false
  end

  -- A trial that does not fit of an evaluation that waits for a slot, as it could not pass it over itself: evaluation
  -- and trial, or nil.
  function view.passed_for_others()
    local priority = view.status(evaluation).priority
    for _, seat in ipairs(redis.call('ZRANGE', key('waiting', worker), 0, -1)) do
      local id, of = string.match(seat, '^(%S+) (%S+)$')
      local rival = id ~= evaluation and view.status(id)
      if rival and rival.runs and rival.pending > 0 and rival.kinds > 0 and rival.priority >= priority then
        local trial, place
        view.each_kind(id, function(kind)
          if view.verdict(id, kind_parts(id, kind)) == 'tight' then
            local queue = rival.kinds > 1 and key('queue', id, of, kind) or key('share', id, of)
            local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
            if first[1] and (not place or tonumber(first[2]) < place) then
              trial, place = first[1], tonumber(first[2])
            end
          end
        end)
        if trial then
          return id, trial
        end
      end
    end
  end

  -- Whether anybody who waits here could use the slot.
  function view.has_heir()
    for _, id in ipairs((rivals())) do
      if could_run(id) then
        return true
      end
    end
    return false
  end

  return view
end
