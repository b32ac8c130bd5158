-- One sync of a gateway: first what happened to its leases since the last sync, in order and once;
-- then its claims, in order.
--
-- ARGV:
--   prefix      of all keys
--   epoch       that the gateway knows
--   seen        writes at the last one of the gateway in this epoch
--   not_after   time after which the script must do nothing
--   gateway     id of the gateway
--   seq         number of the batch of changes; 0 means that there is none
--   version     of the limits that the claims carry; '*' means any
--   lease_ms    how long a lease lasts
--   claims_at   index in ARGV of the claims' first argument
--   changes     each is its kind and the arguments that changes.<kind> reads
--   models      a count; for each the name and its MODEL_LIMITS
--   tenants     a count; for each the name and its TENANT_LIMITS
--   claims      a count; for each: id, index of its model, index of its tenant, replica, limit of
--               the replica, tokens, 1 if in prefill, 1 if first of an Acquire, ms that a task
--               lasts (0: no task), ms that it lasts at most, key of the task, id of the task that
--               the request belongs to ('': none)
--
-- Replies:
--   { 'late', now }               the script ran after not_after
--   { 'epoch', now }              the store is in another epoch, or of an older snapshot
--   { 'wait', now, us }           nothing is granted for so long after the store was emptied
--   { 'stale', now }              the store has limits of another version
--   { 'ok', now, verdicts, tasks, levels, writes }
-- verdicts has seven numbers for each claim: reason, wait, leases of the model, then remaining and
-- reset of the tenant's requests and of its tokens. tasks has an entry for each claim that found an
-- earlier task: index from 0, id, model, tokens, ms left. levels has the tokens of each model's
-- bucket, then for each tenant those of its token bucket and of its request bucket.
--
-- limitsLua in script.go generates REASON, MODEL_LIMITS and TENANT_LIMITS from the table of limits.

local epoch, seen, not_after, gateway, seq = arg(), num(), num(), arg(), num()
local version, lease_ms, claims_at = arg(), num(), num()

if now > not_after then return { 'late', now } end
local state = call('HMGET', P .. 'epoch', 'id', 'ready', last_write(gateway), 'lease', 'forgotten')
if state[1] ~= epoch or has_lost(state[3], state[5], seen) then return { 'epoch', now } end
local writes = count_write(gateway)
longest = math.max(lease_ms, number(state[4]) or 0)

local changes = {}

-- R: a lease was released. If the store never knew the lease, its buckets are charged now.
function changes.R()
  local id, name, tenant, replica, prefill = arg(), arg(), arg(), arg(), num() == 1
  local back, unused, owed, owed_requests, task, under = num(), num(), num(), num(), num(), arg()
  if under ~= '' then
    local c = { model = name, tenant = tenant, replica = replica, prefill = prefill, under = under }
    if release_request(id, c) then
      spend(under, name, tenant, -back, -unused)
    elseif owed > 0 or owed_requests > 0 then
      spend(under, name, tenant, owed - back, owed_requests - unused)
    end
    return
  end
  local declared = 0
  if task == 1 then
    local v = call('HMGET', P .. 'task:' .. id, 'tokens', 'used')
    if v[1] then
      local estimate = number(v[1]) or 0
      declared = estimate - back
      back = refund(estimate, number(v[2]) or 0, declared)
    elseif call('EXISTS', P .. 'ended:' .. id) == 1 then
      back, unused = 0, 0 -- another gateway has ended it, with what it gave back
    end
  end
  local there
  if task == 1 and running(id) > 0 then -- its last request releases it
    there = call('ZSCORE', model(name).lease_key, id)
  else
    there = release(id, name, tenant, replica, prefill)
  end
  if there then
    adjust(name, tenant, back, unused)
  elseif owed > 0 or owed_requests > 0 then
    adjust(name, tenant, back - owed, unused - owed_requests)
  end
  if task == 1 and unused == 1 then
    withdraw(id)
  elseif task == 1 then
    forget(id, declared)
    publish('E', gateway, id) -- another gateway may have admitted it
  end
end

-- M: the slot of a request has moved to another replica ('': one that gateways do not share).
function changes.M()
  local id, name, from, to = arg(), arg(), arg(), arg()
  if from ~= '' and call('ZREM', P .. 'replica:' .. from, id) == 1 then free('model', name) end
  if to ~= '' then put(P .. 'replica:' .. to, whole(now_ms + lease_ms), id) end
end

-- F: a request has had its first token.
function changes.F()
  local id, tenant = arg(), arg()
  if call('ZREM', P .. 'prefill:' .. tenant, id) == 1 then free('tenant', tenant) end
end

-- S: the buckets of a model and a tenant are corrected.
function changes.S()
  local name, tenant, tokens, under = arg(), arg(), num(), arg()
  if under ~= '' then spend(under, name, tenant, -tokens, 0) else adjust(name, tenant, tokens, 0) end
  if tokens > 0 then
    free('model', name)
    free('tenant', tenant)
  end
end

-- K: a gateway reports a lease. The lease is renewed if the store knows it. Otherwise the lease is
-- added, and its buckets are charged what the gateway says is owed. task_ms is 0 for a lease that
-- is no task's, and negative for a task that expired before it was reported. A report does not
-- shorten a task, which another gateway may have renewed. A task that has ended does not come back,
-- and its gateway is told again.
function changes.K()
  local id = arg()
  local c = { model = arg(), tenant = arg(), replica = arg(), prefill = num() == 1, tokens = num() }
  local owed, owed_requests, task_ms = num(), num(), num()
  c.until_ms = now_ms + num()
  c.key, c.under = arg(), arg()
  if c.under ~= '' then
    if hold_request(id, c, now_ms + lease_ms) then spend(c.under, c.model, c.tenant, owed, owed_requests) end
    return
  end
  local ms = task_ms ~= 0 and task_ms or lease_ms
  local is_new = true
  if task_ms ~= 0 and call('EXISTS', P .. 'ended:' .. id) == 1 then
    publish('E', '', id)
    return
  end
  if task_ms > 0 then ms = math.max(ms, call('PTTL', P .. 'task:' .. id)) end
  if ms > 0 then
    is_new = hold(id, c, now_ms + ms)
    if task_ms > 0 then record(id, c, ms) end
  end
  if is_new then adjust(c.model, c.tenant, -owed, -owed_requests) end
end

-- L: a gateway reports the level of a bucket that the store has lost. The lowest report counts.
function changes.L()
  local kind, name, size, level = arg(), arg(), num(), num()
  local b
  if kind == 'm' then b = model_bucket(name, size)
  elseif kind == 't' then b = token_bucket(name, size)
  else b = request_bucket(name, size) end
  if level < b.tokens then b.tokens, b.units, b.dirty = level, 0, true end
end

if seq > 0 then
  local done = P .. 'seq:' .. gateway
  if seq > (number(call('GET', done)) or 0) then
    while cursor + 1 < claims_at do changes[arg()]() end
    call('SET', done, whole(seq), 'PX', 86400000)
    announce(gateway)
  end
end

-- with_limits reads one name and the limits that follow it.
local function with_limits(names)
  local x = { name = arg() }
  for _, limit in ipairs(names) do x[limit] = num() end
  return x
end

cursor = claims_at - 1
local asked_models, asked_tenants = {}, {}
for i = 1, num() do asked_models[i] = with_limits(MODEL_LIMITS) end
for i = 1, num() do asked_tenants[i] = with_limits(TENANT_LIMITS) end
local count = num()
local refused
if count > 0 then
  local current = call('GET', P .. 'limits_version') or ''
  local left = pause_left(state[2])
  if left > 0 then refused = { 'wait', now, left }
  elseif version ~= '*' and version ~= current then refused = { 'stale', now } end
end
if refused then
  save()
  return refused
end

for _, m in ipairs(asked_models) do
  m.state = model(m.name)
  m.state.leases = leases(m.state.lease_key)
end
for _, t in ipairs(asked_tenants) do
  t.leases = leases(P .. 'tenant_leases:' .. t.name)
  t.prefill_key = P .. 'prefill:' .. t.name
end

-- sized returns a bucket in the given size. It calls find for a bucket that was not used yet.
local function sized(bucket, find, name, size)
  if size == 0 then return end
  if not bucket then return find(name, size) end
  resize(bucket, size)
  return bucket
end

-- use gives the buckets of a claim the sizes that the claim carries. While limits change, one sync
-- may bring claims with old limits and claims with new ones.
local function use(c)
  local m, t = c.m, c.t
  m.bucket = sized(m.bucket, model_bucket, m.name, m.max_tokens_per_minute)
  t.token_bucket = sized(t.token_bucket, token_bucket, t.name, t.tokens_per_minute)
  t.request_bucket = sized(t.request_bucket, request_bucket, t.name, t.requests_per_minute)
end

-- is_reached tells whether n things use up a limit; 0 is no limit.
local function is_reached(n, limit) return limit > 0 and n >= limit end

-- obstacle returns the first limit that stands in the way of a claim, and how long it will. The
-- tenant's limits come first, as in process: a tenant at a limit must not hold up the model.
local function obstacle(c)
  local m, t, w = c.m, c.t, 0
  local tokens, requests = c.tokens, 1
  if c.under ~= '' then
    local v = call('HMGET', P .. 'task:' .. c.under, 'tenant', 'model')
    if v[1] ~= t.name or v[2] ~= m.name then return REASON.TASK_ENDED, 0 end
    if running(c.under) > 0 then return REASON.TASK_BUSY, 0 end
    tokens, requests = excess(c.under, tokens, requests)
  end
  local free_of_charge = c.under ~= '' and tokens == 0
  if t.request_bucket and requests > 0 then
    w = wait(t.request_bucket, requests)
    if w > 0 then return REASON.TENANT_REQUESTS, w end
  end
  if t.token_bucket and not free_of_charge then
    w = wait(t.token_bucket, tokens)
    if w > 0 then return REASON.TENANT_TOKENS, w end
  end
  if c.under == '' and is_reached(t.leases.used, t.max_concurrent_streams) then return REASON.TENANT_STREAMS, 0 end
  if c.prefill and t.max_prefill > 0 and leases(t.prefill_key).used >= t.max_prefill then
    return REASON.TENANT_PREFILL, 0
  end
  if c.under == '' and is_reached(m.state.leases.used, m.max_concurrent_requests) then return REASON.MODEL_CONCURRENCY, 0 end
  if c.slots and is_reached(c.slots.used, c.replica_limit) then return REASON.REPLICA_FULL, 0 end
  if m.bucket and not free_of_charge then
    w = wait(m.bucket, tokens)
    if w > 0 then return REASON.MODEL_TOKENS, w end
  end
  return REASON.GRANTED, 0
end

-- join_set counts a lease in its set. save writes the set.
local function join_set(s, id, expiry)
  s.used = s.used + 1
  keep(s.key, expiry - now_ms)
  s.add[#s.add + 1] = expiry
  s.add[#s.add + 1] = id
end

-- grant counts the lease of a claim and charges the buckets.
local function grant(c)
  local m, t = c.m, c.t
  if c.under ~= '' then
    if c.prefill then leases(t.prefill_key).used = leases(t.prefill_key).used + 1 end
    if c.slots then c.slots.used = c.slots.used + 1 end
    hold_request(c.id, { model = m.name, tenant = t.name, replica = c.replica, prefill = c.prefill, under = c.under }, now_ms + lease_ms)
    spend(c.under, m.name, t.name, c.tokens, 1)
    return
  end
  local expiry = whole(now_ms + c.lease_ms)
  join_set(m.state.leases, c.id, expiry)
  join_set(t.leases, c.id, expiry)
  if c.prefill then join_set(leases(t.prefill_key), c.id, expiry) end
  if c.slots then join_set(c.slots, c.id, expiry) end
  if m.bucket then give(m.bucket, -c.tokens) end
  if t.request_bucket then give(t.request_bucket, -1) end
  if t.token_bucket then give(t.token_bucket, -c.tokens) end
  if c.tokens > 0 then
    local s = m.state
    if not s.tenants[t.name] then
      s.tenants[t.name] = 0
      s.tenant_list[#s.tenant_list + 1] = t.name
    end
    s.deficit = (s.deficit or 0) + c.tokens
    s.tenants[t.name] = s.tenants[t.name] + c.tokens
  end
  if c.task then
    record(c.id, { model = m.name, tenant = t.name, tokens = c.tokens, replica = c.replica, key = c.key, until_ms = now_ms + c.life_ms }, c.lease_ms)
  end
end

-- found_task returns the task of an earlier call with the same key, 'ended' if it was completed a
-- short time ago, or nil.
local function found_task(c)
  if not c.task or c.key == '' then return end
  local id = call('GET', task_key(c.t.name, c.key))
  if not id or id == 'ended' then return id or nil end
  local v = call('HMGET', P .. 'task:' .. id, 'model', 'tokens')
  if v[1] then return { id, v[1], number(v[2]) or 0, call('PTTL', P .. 'task:' .. id) } end
end

local granted = {}  -- ids granted by this call, whose sets save writes at the end
local blocked = {}  -- model -> verdict of its own limits, within one Acquire
local marks = {}    -- keys that mark has set in this call

-- mark records for two seconds that a gateway waits for the model, or for the tenant. announce
-- tells the gateways only of capacity that somebody waits for.
local function mark(c, reason)
  if not marks.any then call('SET', P .. 'waiting', '1', 'PX', 2000) end
  marks.any = true
  local of_model = reason == REASON.MODEL_CONCURRENCY or reason == REASON.MODEL_TOKENS or reason == REASON.REPLICA_FULL
  local key = of_model and P .. 'waiting:' .. c.m.name or P .. 'waiting_tenant:' .. c.t.name
  if not of_model then call('SADD', key, c.m.name) end
  if marks[key] then return end
  marks[key] = true
  if of_model then call('SET', key, '1', 'PX', 2000) else call('PEXPIRE', key, 2000) end
end

-- has_lease tells whether the claim's id holds a lease already.
local function has_lease(c)
  if granted[c.id] then return true end
  local set = c.under ~= '' and P .. 'task_requests:' .. c.under or c.m.state.lease_key
  local expiry = call('ZSCORE', set, c.id)
  return expiry and tonumber(expiry) > now_ms
end

-- decide returns the reason, the wait and, if the claim's key found one, the earlier task.
local function decide(c)
  if has_lease(c) then return REASON.GRANTED, 0 end
  local task = found_task(c)
  if task == 'ended' then return REASON.TASK_ENDED, 0 end
  if task then return REASON.GRANTED, 0, task end
  local before = blocked[c.m.name]
  if before and c.under == '' then return before[1], before[2] end
  local reason, w = obstacle(c)
  if reason == REASON.GRANTED then
    grant(c)
    granted[c.id] = true
    return reason, w
  end
  if reason == REASON.TASK_ENDED or reason == REASON.TASK_BUSY then return reason, w end
  mark(c, reason)
  if reason == REASON.MODEL_CONCURRENCY or reason == REASON.MODEL_TOKENS then blocked[c.m.name] = { reason, w } end
  return reason, w
end

local function append_quota(out, b)
  out[#out + 1] = b and math.max(b.tokens, 0) or 0
  out[#out + 1] = b and wait(b, b.size) or 0
end

local verdicts, tasks = {}, {}
for i = 1, count do
  local c = { id = arg(), m = asked_models[num()], t = asked_tenants[num()], replica = arg(), replica_limit = num(), tokens = num() }
  c.prefill, c.task, c.lease_ms = num() == 1, false, lease_ms
  if num() == 1 then blocked = {} end
  local task_ms = num()
  c.life_ms, c.key, c.under = num(), arg(), arg()
  if task_ms > 0 then c.task, c.lease_ms = true, task_ms end
  use(c)
  if c.replica ~= '' then c.slots = leases(P .. 'replica:' .. c.replica) end
  local reason, w, task = decide(c)
  verdicts[#verdicts + 1] = reason
  verdicts[#verdicts + 1] = w
  verdicts[#verdicts + 1] = c.m.state.leases.used
  append_quota(verdicts, c.t.request_bucket)
  append_quota(verdicts, c.t.token_bucket)
  if task then tasks[#tasks + 1] = { i - 1, task[1], task[2], task[3], task[4] } end
end
save()

local levels = {}
for _, m in ipairs(asked_models) do levels[#levels + 1] = m.bucket and m.bucket.tokens or 0 end
for _, t in ipairs(asked_tenants) do
  levels[#levels + 1] = t.token_bucket and t.token_bucket.tokens or 0
  levels[#levels + 1] = t.request_bucket and t.request_bucket.tokens or 0
end
return { 'ok', now, verdicts, tasks, levels, writes }
