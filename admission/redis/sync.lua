-- One turn of a gateway: what has happened to its leases since the last one, in order and once; then its claims, in order.
--
-- ARGV: prefix, epoch, time after which nothing may happen, gateway, number of the batch of changes (0: none), version of the limits
-- ('*': any), ms that leases last, index of the claims, changes, claims.

local epoch, not_after, gateway, seq, version, lease_ms, claims_at = arg(), num(), arg(), num(), arg(), num(), num()

if now > not_after then return { 'late', now } end
local state = call('HMGET', P .. 'epoch', 'id', 'ready')
if state[1] ~= epoch then return { 'epoch', now } end

local changes = {}

-- R: a lease has ended. What it owed is charged if the store never knew it.
function changes.R()
  local id, name, tenant, replica, prefill = arg(), arg(), arg(), arg(), num() == 1
  local back, unused, owed, owed_requests, task = num(), num(), num(), num(), num()
  if release(id, name, tenant, replica, prefill) then
    adjust(name, tenant, back, unused)
  elseif owed > 0 or owed_requests > 0 then
    adjust(name, tenant, back - owed, unused - owed_requests)
  end
  if task == 1 then forget(id) end
end

-- F: a request has had its first token.
function changes.F()
  local id, tenant = arg(), arg()
  if call('ZREM', P .. 'prefill:' .. tenant, id) == 1 then free('tenant', tenant) end
end

-- S: buckets are corrected.
function changes.S()
  local name, tenant, tokens = arg(), arg(), num()
  adjust(name, tenant, tokens, 0)
  if tokens > 0 then
    free('model', name)
    free('tenant', tenant)
  end
end

-- K: a lease is there. It is renewed, or put back, or new: then it is charged what it owes.
function changes.K()
  local id = arg()
  local c = { model = arg(), tenant = arg(), replica = arg(), prefill = num() == 1, tokens = num() }
  local owed, owed_requests, task_ms = num(), num(), num()
  c.key = arg()
  local ms = task_ms ~= 0 and task_ms or lease_ms
  local fresh = true
  if task_ms ~= 0 and call('EXISTS', P .. 'ended:' .. id) == 1 then return end
  if ms > 0 then
    fresh = hold(id, c, now_ms + ms)
    if task_ms > 0 then record(id, c, ms) end
  end
  if fresh then adjust(c.model, c.tenant, -owed, -owed_requests) end
end

-- L: what a gateway knows of a bucket that the store has lost.
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
  if seq > tonumber(call('GET', done) or '0') then
    while cursor + 1 < claims_at do changes[arg()]() end
    call('SET', done, whole(seq), 'PX', 86400000)
    announce(gateway)
  end
end

cursor = claims_at - 1
local asked_models, asked_tenants = {}, {}
for i = 1, num() do
  asked_models[i] = { name = arg(), max = num(), size = num() }
end
for i = 1, num() do
  asked_tenants[i] = { name = arg(), requests = num(), tokens = num(), max = num(), max_prefill = num() }
end
local count = num()
local refused
if count > 0 then
  local current = call('GET', P .. 'limits_version') or ''
  if tonumber(state[2]) > now then refused = { 'wait', now, tonumber(state[2]) - now }
  elseif version ~= '*' and version ~= current then refused = { 'stale', now } end
end
if refused then
  save()
  return refused
end

-- The numbers of package admission's reasons.
local GRANTED, MODEL_CONCURRENCY, MODEL_TOKENS, TENANT_REQUESTS, TENANT_TOKENS = 0, 1, 2, 3, 4
local TENANT_STREAMS, TENANT_PREFILL, REPLICA_FULL = 5, 6, 7

for _, m in ipairs(asked_models) do
  m.state = model(m.name)
  m.state.leases = leases(m.state.lease_key)
end
for _, t in ipairs(asked_tenants) do
  t.leases = leases(P .. 'tenant_leases:' .. t.name)
  t.prefill_key = P .. 'prefill:' .. t.name
end

local function sized(found, find, name, size)
  if size == 0 then return end
  if not found then return find(name, size) end
  resize(found, size)
  return found
end

-- use finds the buckets, in the sizes of this claim: while limits change, claims of old and new ones may come in one turn.
local function use(c)
  local m, t = c.m, c.t
  m.bucket = sized(m.bucket, model_bucket, m.name, m.size)
  t.token_bucket = sized(t.token_bucket, token_bucket, t.name, t.tokens)
  t.request_bucket = sized(t.request_bucket, request_bucket, t.name, t.requests)
end

-- obstacle is the first thing in the way of a claim, and how long it will be there. The tenant's own limits come first, as they do in
-- process: who is over them does not hold up the model.
local function obstacle(c)
  local m, t, w = c.m, c.t, 0
  if t.request_bucket then
    w = wait(t.request_bucket, 1)
    if w > 0 then return TENANT_REQUESTS, w end
  end
  if t.token_bucket then
    w = wait(t.token_bucket, c.tokens)
    if w > 0 then return TENANT_TOKENS, w end
  end
  if t.max > 0 and t.leases.used >= t.max then return TENANT_STREAMS, 0 end
  if c.prefill and t.max_prefill > 0 and leases(t.prefill_key).used >= t.max_prefill then return TENANT_PREFILL, 0 end
  if m.max > 0 and m.state.leases.used >= m.max then return MODEL_CONCURRENCY, 0 end
  if c.slots and c.replica_limit > 0 and c.slots.used >= c.replica_limit then return REPLICA_FULL, 0 end
  if m.bucket then
    w = wait(m.bucket, c.tokens)
    if w > 0 then return MODEL_TOKENS, w end
  end
  return GRANTED, 0
end

local function join_set(s, id, expiry)
  s.used = s.used + 1
  s.add[#s.add + 1] = expiry
  s.add[#s.add + 1] = id
end

local function grant(c)
  local m, t = c.m, c.t
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
    record(c.id, { model = m.name, tenant = t.name, tokens = c.tokens, replica = c.replica, key = c.key }, c.lease_ms)
  end
end

-- found is the task of an earlier call with the same key.
local function found(c)
  if not c.task or c.key == '' then return end
  local id = call('GET', P .. 'task_key:' .. #c.t.name .. ':' .. c.t.name .. c.key)
  if not id then return end
  local v = call('HMGET', P .. 'task:' .. id, 'model', 'tokens')
  if v[1] then return { id, v[1], tonumber(v[2]), call('PTTL', P .. 'task:' .. id) } end
end

local granted = {}  -- in this call: their sets are written at the end
local blocked = {}  -- model -> verdict, within one call of Acquire
local marks = {}

local function mark(c, reason)
  if not marks.any then call('SET', P .. 'waiting', '1', 'PX', 2000) end
  marks.any = true
  if reason == MODEL_CONCURRENCY or reason == MODEL_TOKENS or reason == REPLICA_FULL then
    local key = P .. 'waiting:' .. c.m.name
    if not marks[key] then call('SET', key, '1', 'PX', 2000) end
    marks[key] = true
  else
    local key = P .. 'waiting_tenant:' .. c.t.name
    call('SADD', key, c.m.name)
    if not marks[key] then call('PEXPIRE', key, 2000) end
    marks[key] = true
  end
end

local function known(c)
  if granted[c.id] then return true end
  local expiry = call('ZSCORE', c.m.state.lease_key, c.id)
  return expiry and tonumber(expiry) > now_ms
end

local function decide(c)
  if known(c) then return GRANTED, 0 end
  local task = found(c)
  if task then return GRANTED, 0, task end
  local before = blocked[c.m.name]
  if before then return before[1], before[2] end
  local reason, w = obstacle(c)
  if reason == GRANTED then
    grant(c)
    granted[c.id] = true
    return reason, w
  end
  mark(c, reason)
  if reason == MODEL_CONCURRENCY or reason == MODEL_TOKENS then blocked[c.m.name] = { reason, w } end
  return reason, w
end

local function quota(out, b)
  out[#out + 1] = b and math.max(b.tokens, 0) or 0
  out[#out + 1] = b and wait(b, b.size) or 0
end

local verdicts, tasks = {}, {}
for i = 1, count do
  local c = { id = arg(), m = asked_models[num()], t = asked_tenants[num()], replica = arg(), replica_limit = num(), tokens = num() }
  c.prefill, c.task, c.lease_ms = num() == 1, false, lease_ms
  if num() == 1 then blocked = {} end
  local task_ms = num()
  c.key = arg()
  if task_ms > 0 then c.task, c.lease_ms = true, task_ms end
  use(c)
  if c.replica ~= '' then c.slots = leases(P .. 'replica:' .. c.replica) end
  local reason, w, task = decide(c)
  verdicts[#verdicts + 1] = reason
  verdicts[#verdicts + 1] = w
  verdicts[#verdicts + 1] = c.m.state.leases.used
  verdicts[#verdicts + 1] = c.slots and c.slots.used or 0
  quota(verdicts, c.t.request_bucket)
  quota(verdicts, c.t.token_bucket)
  if task then tasks[#tasks + 1] = { i - 1, task[1], task[2], task[3], task[4] } end
end
save()

local levels = {}
for _, m in ipairs(asked_models) do levels[#levels + 1] = m.bucket and m.bucket.tokens or 0 end
for _, t in ipairs(asked_tenants) do
  levels[#levels + 1] = t.token_bucket and t.token_bucket.tokens or 0
  levels[#levels + 1] = t.request_bucket and t.request_bucket.tokens or 0
end
return { 'ok', now, verdicts, tasks, levels }
