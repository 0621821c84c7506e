-- ARGV: evaluation, batch, worker, token, lease in ms, ms for which a trial may be passed over.
-- Returns the claim as JSON, 'wait', 'leave' (a wait for faster slots), 'turn' (the batch is sent again, behind the others), or nil when nothing is left.
local LATE = 1000 -- ms, as LATE_SECONDS of aeo/core/gates.py
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

local status = redis.call('HMGET', key('evaluation', evaluation), 'state', 'pending', 'kinds')
local kinds = tonumber(status[3] or 0)
if status[1] ~= 'running' or status[2] == '0' or not takes(worker) or barred(worker) then
  return false
end

-- Made when it is needed only: most claims are of trials that declare nothing, and nobody waits.
local seen
local function view()
  seen = seen or look(evaluation, batch, worker, tonumber(ARGV[6]))
  return seen
end

local function turn()
  redis.call('HSET', key('batch_states', evaluation), batch, 'sent')
  redis.call('HSET', key('batch_since', evaluation), batch, NOW)
  redis.call('HSET', key('turned', evaluation), batch, NOW .. ' ' .. token)
  seat_batch(evaluation, batch, worker, 'sent')
  emit(evaluation, 'batch_turned', 'batch', batch, 'worker', worker)
  return 'turn'
end

if own == 'started' then
  if redis.call('EXISTS', key('waiting', worker)) == 1 then
    local since = tonumber(redis.call('HGET', key('batch_since', evaluation), batch) or 0)
    if view().gives_way(NOW - since) then
      return turn()
    end
  end
else
  local given = redis.call('HGET', key('turned', evaluation), batch)
  if given and string.match(given, ' (.*)$') == token then
    return 'turn'
  end
end

local unfit = key('unfit', evaluation, worker)
local fits_all = redis.call('EXISTS', unfit) == 0
local avoid = key('avoid', evaluation)
local shun = redis.call('EXISTS', avoid) == 1
local has_avoided = shun
local STEP = 100

-- A trial that failed on this worker is left to others for a while, if another one works on this evaluation.
if shun then
  shun = false
  local states = redis.call('HGETALL', key('batch_states', evaluation))
  for i = 1, #states, 2 do
    local other = redis.call('HGET', key('batches', evaluation), states[i])
    if states[i + 1] == 'started' and other ~= worker then
      shun = shun or is_at_work(other)
    end
  end
end

local function shunned(trial)
  local mark = shun and redis.call('HGET', avoid, trial)
  return mark and mark == worker and tonumber(redis.call('HGET', avoid, trial .. ' since')) > NOW - SHUN_MS
end

local slower = leaving(evaluation, batch, worker)

-- The first of a queue that may run here and its place; whether one was left out that may run here later.
local function first_fit(queue, kind)
  local from, most = 0, slower and slower.longest(queue, kind, fits_all and not shun) or math.huge
  if fits_all and not shun and most == math.huge then
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    return first[1], tonumber(first[2]), false
  end
  local later = false
  if most ~= math.huge then
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if estimate_of(evaluation, first[1]) <= most and redis.call('SISMEMBER', unfit, first[1]) == 0 then
      later = shunned(first[1])
      if not later then
        return first[1], tonumber(first[2]), false
      end
    end
    local left = slower.left
    from = slower.begin(queue, kind, most)
    later = later or slower.left > left
  end
  while true do
    local trials = redis.call('ZRANGE', queue, from, from + STEP - 1)
    if #trials == 0 then
      return nil, nil, later
    end
    local bad = redis.call('SMISMEMBER', unfit, unpack(trials))
    for i, trial in ipairs(trials) do
      if bad[i] == 0 then
        if most ~= math.huge and estimate_of(evaluation, trial) > most then
          slower.leave(queue, kind)
        elseif not shunned(trial) then
          return trial, tonumber(redis.call('ZSCORE', queue, trial)), later
        end
        later = true
      end
    end
    from = from + STEP
  end
end

-- What is said of each kind that waits; only those that may run here at all.
local verdicts, some_run, some_wait, some_fit = {}, false, false, false
local function note(kind)
  local verdict = kind and view().verdict(evaluation, kind_parts(evaluation, kind)) or 'yes'
  if verdict ~= 'never' then
    verdicts[#verdicts + 1] = { kind, verdict }
    some_run = some_run or verdict ~= 'later'
    some_wait = some_wait or verdict ~= 'yes'
    some_fit = some_fit or verdict == 'yes'
  end
end
if kinds == 0 then
  note(nil)
else
  view().each_kind(evaluation, note)
end

local blocked, passed = some_wait, nil

local function pick(share)
  local trial, place, tight, tight_place
  for _, said in ipairs(verdicts) do
    local kind, verdict = said[1], said[2]
    if verdict ~= 'later' then
      local queue = kinds > 1 and key('queue', evaluation, share, kind) or key('share', evaluation, share)
      local first, at, later = first_fit(queue, kind)
      blocked = blocked or later
      if first and verdict == 'yes' and (not place or at < place) then
        trial, place = first, at
      elseif first and verdict == 'tight' and (not tight_place or at < tight_place) then
        tight, tight_place = first, at
      end
    end
  end
  if tight and not passed and (not place or tight_place < place) then
    passed = tight
  end
  return trial
end

local trial
if kinds > 0 then
  local kept = view().room()
  if kept and kept.evaluation == evaluation and view().binds(kept, view().status(evaluation).priority)
    and view().fits(kept.parts) then
    trial = kept.trial
  end
end
if not trial and some_run then
  trial = pick(batch)
  if not trial and (some_fit or not passed) then
    -- The first is enough where every trial may run here.
    local all = kinds <= 1 and fits_all and not shun and not slower
    local looked = 0
    for _, other in ipairs(redis.call('ZREVRANGE', key('left', evaluation), 0, all and 1 or -1)) do
      if other ~= batch then
        local left = slower and slower.left
        trial = pick(other)
        if slower and slower.left > left then
          looked = looked + 1
        end
        if trial or (passed and not some_fit) or looked == SHARES then
          break
        end
      end
    end
  end
end

if kinds > 0 then
  -- Who makes room for what, from now on.
  local kept, had = view().room(), view().had_room
  if had and not kept and redis.call('HGET', key('rooms', had.evaluation), had.trial) == worker then
    redis.call('HDEL', key('rooms', had.evaluation), had.trial)
  end
  if had and not kept then
    redis.call('DEL', key('room', worker))
  end
  if trial then
    local keeper = redis.call('HGET', key('rooms', evaluation), trial)
    if keeper then
      redis.call('HDEL', key('rooms', evaluation), trial)
      -- Another's room is its own to clear.
      if keeper == worker and had and had.evaluation == evaluation and had.trial == trial then
        redis.call('DEL', key('room', worker))
      end
      if kept and kept.trial == trial and kept.evaluation == evaluation then
        kept = nil
      end
    end
  end
  local whose = evaluation
  if not passed and not kept and (trial or blocked) and redis.call('EXISTS', key('waiting', worker)) == 1 then
    whose, passed = view().passed_for_others()
  end
  if passed and not kept then
    local keeper = redis.call('HGET', key('rooms', whose), passed)
    if not keeper or keeper == worker or not is_at_work(keeper) or not has_batch(keeper, whose) then
      redis.call('SET', key('room', worker), whose .. ' ' .. passed .. ' ' .. NOW)
      redis.call('HSET', key('rooms', whose), passed, worker)
    end
  end
end

local leaves = not trial and slower and slower.left > 0
if trial then
  redis.call('HDEL', key('leaves', evaluation), batch, batch .. ' rests')
elseif leaves then
  slower.keep()
else
  redis.call('HDEL', key('leaves', evaluation), batch .. ' rests')
end
if slower and slower.horizon then
  redis.call('HSET', key('leaves', evaluation), ' horizon', slower.horizon)
end

if not trial then
  -- What it ran before has ended, or it would not ask.
  leave_load(evaluation, batch, worker)
  if not blocked then
    return false
  end
  return own == 'started' and view().has_heir() and turn() or leaves and 'leave' or 'wait'
end

local attempt = 1 + tonumber(redis.call('HGET', key('requeues', evaluation), trial) or 0)
leave_share(evaluation, trial, kinds)
if has_avoided then
  redis.call('HDEL', avoid, trial, trial .. ' since')
end
shift(evaluation, trial, 'pending', 'running')
local kind = kinds > 0 and kind_of(evaluation, trial)
if kind then
  enter_load(evaluation, batch, worker, trial, kind)
  local model = kind_parts(evaluation, kind).model
  for name, limit in pairs(model ~= '' and limits() or {}) do
    if limit[2] > 0 and covers(name, model) then
      -- Who waits looks now and then: what it comes too late by, for a second at most, the next may start earlier.
      local due = tonumber(redis.call('HGET', key('paced'), name)) or NOW
      redis.call('HSET', key('paced'), name, math.ceil(math.max(due, NOW - LATE) + 60000 / limit[2]))
    end
  end
end
local claim = begin_lease(evaluation, trial, batch, worker, token, attempt, lease)
emit(evaluation, 'claimed', 'trial', trial, 'batch', batch, 'worker', worker, 'token', token, 'attempt', attempt)
return claim
