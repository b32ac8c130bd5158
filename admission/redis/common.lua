-- The part before each of the other scripts, in the same chunk. ARGV[1] is the prefix of all keys,
-- "{deployment}:". KEYS[1] is the key of the epoch; it only routes the call to the right node of a
-- cluster.
--
-- All times are microseconds of Redis' clock unless their name says ms. They stay below 2^53, so a
-- double holds them exactly. A bucket has whole tokens and, apart from them, units: 60-millionths
-- of a token. A bucket of n tokens per minute gains n units in each microsecond. Tokens and units
-- stay whole and below 2^53, so no rounding adds a token.

local floor, ceil = math.floor, math.ceil
local P = ARGV[1]
local UNITS = 60000000

-- call is redis.call, but for a key that has another type than the command takes. Such a key is
-- damaged, as a number may be: it is removed, and the command finds none. A script that failed
-- there would have done a part of its work, which no later run could complete.
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = floor(now / 1000)

-- whole formats a number as digits. tostring would round it to 14 digits and write an exponent.
local function whole(x) return string.format('%.0f', x) end

-- number reads what whole has written. The result is nil for anything else: nobody has written it,
-- or it is damaged. Damage must not make the scripts fail, because each later one would fail as
-- well.
local function number(text)
  local n = tonumber(text or nil)
  if n and n == floor(n) and math.abs(n) < 9007199254740992 then return n end
end

-- PAUSE is how long nothing is granted after the store was emptied. pause_left returns how much of
-- it is left, until the time ready. A longer one is of a clock that has gone back, and is over.
local PAUSE = 2000000
local function pause_left(ready)
  local left = tonumber(ready) - now
  if left > PAUSE then return 0 end
  return math.max(left, 0)
end

-- The hash epoch counts what gateways write, and has the count at the last write of each gateway. A
-- store in which that is less than the gateway has seen has come back from an older snapshot. The
-- count of all would not tell: others may have written as much since. Where the last write of the
-- gateway was removed, forgotten stands for it: the count when some were removed last (join.lua).
local function last_write(gateway) return 'by:' .. gateway end
local function has_lost(counted, forgotten, seen) return (tonumber(counted or forgotten or nil) or 0) < seen end
local function count_write(gateway)
  local count = call('HINCRBY', P .. 'epoch', 'writes', 1)
  call('HSET', P .. 'epoch', last_write(gateway), whole(count))
  return count
end

local cursor = 1
local function arg() cursor = cursor + 1; return ARGV[cursor] end
local function num() return tonumber(arg()) end

-- longest is the longest lease of a request at any gateway, in ms. sync.lua sets it. shorten ends
-- leases in this time that would last longer, because they were written while the clock was ahead.
-- Nobody else would end those of a dead gateway before the clock is there again. Tasks have leases
-- of other lengths.
local longest
local function shorten(key)
  for _, id in ipairs(call('ZREVRANGEBYSCORE', key, '+inf', '(' .. whole(now_ms + longest), 'LIMIT', 0, 100)) do
    if call('EXISTS', P .. 'task:' .. id) == 0 then call('ZADD', key, whole(now_ms + longest), id) end
  end
end

-- leases returns a set of leases: id -> expiry in ms. Expired leases do not count, and are removed
-- now and then. Changes come first in a sync, so a set is counted when its changes are written.
local sets = {}
local set_list = {}
local function leases(key)
  local s = sets[key]
  if not s then
    if now % 32 == 0 then
      call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
      shorten(key)
    end
    s = { key = key, used = call('ZCOUNT', key, '(' .. whole(now_ms), '+inf'), add = {} }
    sets[key] = s
    set_list[#set_list + 1] = s
  end
  return s
end

-- row reads the hash of a model or a tenant. Each hash is read once and written once by save, in
-- whole numbers.
local MODEL_FIELDS = { 'tokens', 'tokens_units', 'tokens_limit', 'tokens_at', 'deficit', 'in_flight' }
local TENANT_FIELDS = { 'tokens', 'tokens_units', 'tokens_limit', 'tokens_at', 'requests', 'requests_units', 'requests_limit', 'requests_at' }
local rows = {}
local row_list = {}
local function row(key, fields)
  local r = rows[key]
  if not r then
    r = { key = key, buckets = {} }
    local values = call('HMGET', key, unpack(fields))
    for i, field in ipairs(fields) do r[field] = number(values[i]) end
    rows[key] = r
    row_list[#row_list + 1] = r
  end
  return r
end

local models = {}
local function model(name)
  local m = models[name]
  if not m then
    m = row(P .. 'runtime:' .. name, MODEL_FIELDS)
    m.name, m.lease_key, m.tenants, m.tenant_list = name, P .. 'leases:' .. name, {}, {}
    m.in_flight = m.in_flight or 0
    m.was = m.in_flight
    models[name] = m
  end
  return m
end

-- max_debt returns the largest debt of a bucket. Those of a tenant's tokens are deep, as in
-- process.
local function max_debt(b)
  if not b.deep then return b.size end
  return math.max(b.size, math.min(60 * b.size, 38430716820))
end

-- refill brings a bucket up to now. A clock that has gone back gives nothing, and the bucket fills
-- from the new time on: otherwise it would be frozen until the clock is there again.
local function refill(b)
  local elapsed = now - b.at
  if elapsed < 0 then b.at, b.dirty = now, true end
  if elapsed <= 0 then return end
  b.at = now
  local minutes = floor(elapsed / UNITS)
  local rest = elapsed - minutes * UNITS
  if minutes >= 62 then -- no debt lasts longer than 60 minutes
    b.tokens, b.units = b.size, 0
    return
  end
  local high = floor(b.size / UNITS)
  local part = rest * (b.size - high * UNITS) + b.units
  local more = floor(part / UNITS)
  b.tokens = b.tokens + minutes * b.size + rest * high + more
  b.units = part - more * UNITS
  if b.tokens >= b.size then b.tokens, b.units = b.size, 0 end
end

-- resize changes the limit of a bucket. A bucket that had no limit starts full.
local function resize(b, limit)
  if b.size == limit then return end
  if b.size then
    if b.tokens >= limit then b.tokens, b.units = limit, 0 end
  else
    b.tokens, b.units, b.at = limit, 0, now
  end
  b.size, b.dirty = limit, true
  local lowest = -max_debt(b)
  if b.tokens < lowest then b.tokens, b.units = lowest, 0 end
end

-- bucket returns a bucket of a row. limit is its size now; nil means the size that it had. A new
-- bucket is full, and so is one of which a number is missing. Without a size, the result is nil.
local function bucket(r, what, limit, deep)
  local b = r.buckets[what]
  if not b then
    b = { deep = deep, size = r[what .. '_limit'], tokens = r[what], units = r[what .. '_units'], at = r[what .. '_at'] }
    if not (b.size and b.size > 0 and b.tokens and b.units and b.at) then b = { deep = deep } end
    if b.size then refill(b) end
    r.buckets[what] = b
  end
  if limit and limit > 0 then resize(b, limit) end
  if b.size then return b end
end

local function model_bucket(name, limit) return bucket(model(name), 'tokens', limit) end
local function token_bucket(tenant, limit) return bucket(row(P .. 'tenant_runtime:' .. tenant, TENANT_FIELDS), 'tokens', limit, true) end
local function request_bucket(tenant, limit) return bucket(row(P .. 'tenant_runtime:' .. tenant, TENANT_FIELDS), 'requests', limit) end

-- wait returns the time until the bucket has so many tokens, if nobody else is charged.
local function wait(b, need)
  local missing = need - b.tokens
  if missing <= 0 then return 0 end
  local minutes = floor(missing / b.size)
  if minutes >= 1048576 then return 1048576 * UNITS end
  return minutes * UNITS + ceil(((missing - minutes * b.size) * UNITS - b.units) / b.size)
end

-- give puts tokens back. A negative number charges them, down to the largest debt.
local function give(b, tokens)
  if not b or tokens == 0 then return end
  b.tokens, b.dirty = b.tokens + tokens, true
  if b.tokens >= b.size then b.tokens, b.units = b.size, 0 end
  local lowest = -max_debt(b)
  if b.tokens < lowest then b.tokens, b.units = lowest, 0 end
end

local function adjust(model_name, tenant, tokens, requests)
  give(model_bucket(model_name), tokens)
  give(token_bucket(tenant), tokens)
  give(request_bucket(tenant), requests)
end

-- A task's account is in its record: tokens is its estimate, used and requests are what its
-- requests have used. Model and tenant are charged the larger of tokens and used, and of requests
-- and 1. The account of an ended task has a record of its own, because the real cost of a request
-- may be known later. tokens is then what the task's caller has declared. An account that is gone
-- covers nothing.

-- account_of returns the account of a task, with the key of its record.
local function account_of(task)
  for _, key in ipairs({ P .. 'task:' .. task, P .. 'account:' .. task }) do
    local v = call('HMGET', key, 'tokens', 'used', 'requests')
    if v[1] then return { key = key, estimate = number(v[1]) or 0, used = number(v[2]) or 0, requests = number(v[3]) or 0 } end
  end
end

-- excess returns what a task does not cover of so many tokens and requests, and its account.
local function excess(task, tokens, requests)
  local a = account_of(task)
  if not a then return tokens, requests end
  local used, made = math.max(a.used + tokens, 0), math.max(a.requests + requests, 0)
  local more = math.max(a.estimate, used) - math.max(a.estimate, a.used)
  local more_requests = math.max(1, made) - math.max(1, a.requests)
  a.used, a.requests = used, made
  return more, more_requests, a
end

-- spend adds what a request of a task uses, or takes it back if the numbers are negative, and
-- charges the buckets.
local function spend(task, model_name, tenant, tokens, requests)
  local more, more_requests, account = excess(task, tokens, requests)
  if account then
    call('HSET', account.key, 'used', whole(account.used), 'requests', whole(account.requests))
  end
  adjust(model_name, tenant, -more, -more_requests)
end

-- refund returns what the buckets get back of a task that has cost so much by its caller's word;
-- nil is unknown. It costs no less than its requests have used.
local function refund(estimate, used, declared)
  local charged = math.max(estimate, used)
  return charged - math.max(declared or charged, used)
end

-- free records that capacity may have become free. announce tells the gateways that wait for it.
local freed = {}
local function free(kind, name) freed[#freed + 1] = { kind, name } end

-- publish sends a message: its kind, the length of the gateway's id, a colon, that id, and the
-- rest.
local function publish(kind, gateway, rest)
  call('PUBLISH', P .. 'events', kind .. #gateway .. ':' .. gateway .. rest)
end

local function announce(gateway)
  if #freed == 0 or call('EXISTS', P .. 'waiting') == 0 then return end
  local told = {}
  local function tell(name)
    if told[name] then return end
    told[name] = true
    publish('F', gateway, name)
  end
  for _, f in ipairs(freed) do
    if f[1] == 'model' then
      if call('EXISTS', P .. 'waiting:' .. f[2]) == 1 then tell(f[2]) end
    else
      for _, name in ipairs(call('SMEMBERS', P .. 'waiting_tenant:' .. f[2])) do tell(name) end
    end
  end
end

-- put adds a lease to a set, or renews it there, and returns 1 if it is new. keep has save let the
-- set live for at least so many ms, and for TENANT_MS: nobody looks at the set of a name that is
-- gone. save sets the expiry a day later, so that it has to do so once a day, and never sets it
-- earlier.
local TENANT_MS, DAY_MS = 604800000, 86400000
local kept = {}
local function keep(key, ms) kept[key] = math.max(kept[key] or TENANT_MS, ms) end
local function put(key, expiry, id)
  keep(key, expiry - now_ms)
  return call('ZADD', key, expiry, id)
end

-- running counts the requests of a task that hold a slot.
local function running(task) return call('ZCOUNT', P .. 'task_requests:' .. task, '(' .. whole(now_ms), '+inf') end

-- release removes a lease from its sets, and returns whether it was there.
local function release(id, model_name, tenant, replica, prefill)
  local m = model(model_name)
  local there = call('ZREM', m.lease_key, id)
  m.in_flight = math.max(m.in_flight - there, 0)
  call('ZREM', P .. 'tenant_leases:' .. tenant, id)
  if prefill then call('ZREM', P .. 'prefill:' .. tenant, id) end
  if replica ~= '' then call('ZREM', P .. 'replica:' .. replica, id) end
  free('model', model_name)
  free('tenant', tenant)
  return there == 1
end

-- hold adds a lease to its sets or renews it, and returns whether it is new.
local function hold(id, c, expiry)
  local m = model(c.model)
  expiry = whole(expiry)
  local added = put(m.lease_key, expiry, id)
  m.in_flight = m.in_flight + added
  put(P .. 'tenant_leases:' .. c.tenant, expiry, id)
  if c.prefill then put(P .. 'prefill:' .. c.tenant, expiry, id) end
  if c.replica ~= '' then put(P .. 'replica:' .. c.replica, expiry, id) end
  return added == 1
end

-- hold_request adds a request of a task, or renews it, and returns whether it is new. The lease of
-- the task lasts as long as the request, even if the task ends before.
local function hold_request(id, c, expiry)
  local key, text = P .. 'task_requests:' .. c.under, whole(expiry)
  local added = call('ZADD', key, text, id)
  call('PEXPIREAT', key, text)
  if c.prefill then put(P .. 'prefill:' .. c.tenant, text, id) end
  if c.replica ~= '' then put(P .. 'replica:' .. c.replica, text, id) end
  for _, set in ipairs({ P .. 'leases:' .. c.model, P .. 'tenant_leases:' .. c.tenant }) do
    local ends = call('ZSCORE', set, c.under)
    if ends and tonumber(ends) < expiry then put(set, text, c.under) end
  end
  return added == 1
end

-- release_request removes a request of a task, and returns whether it was there. The last request
-- of a task that has ended releases the task's lease.
local function release_request(id, c)
  local there = call('ZREM', P .. 'task_requests:' .. c.under, id)
  if c.prefill then call('ZREM', P .. 'prefill:' .. c.tenant, id) end
  if c.replica ~= '' then call('ZREM', P .. 'replica:' .. c.replica, id) end
  if call('EXISTS', P .. 'task:' .. c.under) == 0 and running(c.under) == 0 then
    release(c.under, c.model, c.tenant, '', false)
  else
    free('model', c.model)
    free('tenant', c.tenant)
  end
  return there == 1
end

-- task_key is the key of the id of the task with this key of its caller.
local function task_key(tenant, key) return P .. 'task_key:' .. #tenant .. ':' .. tenant .. key end

-- record keeps what any gateway must know to end a task. c.until_ms is when it ends at the latest.
local function record(id, c, lease_ms)
  local key = P .. 'task:' .. id
  call('HSET', key, 'model', c.model, 'tenant', c.tenant, 'tokens', whole(c.tokens), 'replica', c.replica, 'key', c.key,
    'until', whole(c.until_ms))
  call('PEXPIRE', key, whole(lease_ms))
  if c.key ~= '' then
    call('SET', task_key(c.tenant, c.key), id, 'PX', whole(lease_ms))
  end
end

-- withdraw removes the record of a task that was taken back before its caller knew of it. A later
-- call with the task's key makes a new task.
local function withdraw(id)
  local key = P .. 'task:' .. id
  local v = call('HMGET', key, 'tenant', 'key')
  if not v[1] then return end
  local of_key = task_key(v[1], v[2])
  if v[2] ~= '' and call('GET', of_key) == id then call('DEL', of_key) end
  call('DEL', key)
end

-- forget removes the record of a task that has cost so many tokens by its caller's word. A gateway
-- that still knows the task must not bring it back while it could still run. The task's key says
-- for 15 minutes that the task has ended. The account of its requests is kept as long as the task
-- could have run.
local function forget(id, declared)
  local key = P .. 'task:' .. id
  local v = call('HMGET', key, 'tenant', 'key', 'used', 'requests')
  if not v[1] then -- the store has lost it, or never knew it
    call('SET', P .. 'ended:' .. id, '', 'PX', 60000)
    return
  end
  if v[2] ~= '' then call('SET', task_key(v[1], v[2]), 'ended', 'PX', 900000) end
  local left = whole(math.max(call('PTTL', key), 60000))
  call('SET', P .. 'ended:' .. id, v[1], 'PX', left)
  if v[3] then
    local account = P .. 'account:' .. id
    call('HSET', account, 'tokens', whole(declared), 'used', whole(number(v[3]) or 0), 'requests', whole(number(v[4]) or 0))
    call('PEXPIRE', account, left)
  end
  call('DEL', key)
end

-- A tenant may be a key that ends, and nobody tells the store. So the record of a tenant expires
-- TENANT_MS after its last write, when its buckets have long been full. The counts of tokens served
-- begin anew beyond SERVED_MOST tenants, because only their differences matter.
local SERVED_MOST = 20000

-- serve counts the tokens that tenants were granted of a model.
local function serve(m)
  local key = P .. 'served:' .. m.name
  if call('HLEN', key) > SERVED_MOST then call('DEL', key) end
  for _, t in ipairs(m.tenant_list) do
    local count = redis.pcall('HINCRBY', key, t, whole(m.tenants[t]))
    if type(count) == 'table' then call('HSET', key, t, whole(m.tenants[t])) end -- it was damaged
  end
end

-- save writes what the script has decided.
local function save()
  for _, s in ipairs(set_list) do
    for i = 1, #s.add, 1000 do
      call('ZADD', s.key, unpack(s.add, i, math.min(i + 999, #s.add)))
    end
  end
  for key, ms in pairs(kept) do
    if call('PTTL', key) < ms then call('PEXPIRE', key, whole(ms + DAY_MS)) end
  end
  for _, r in ipairs(row_list) do
    local words = {}
    local function write(field, value)
      words[#words + 1] = field
      words[#words + 1] = whole(value)
    end
    for what, b in pairs(r.buckets) do
      if b.dirty then
        write(what, b.tokens)
        write(what .. '_units', b.units)
        write(what .. '_limit', b.size)
        write(what .. '_at', b.at)
      end
    end
    if r.leases then r.in_flight = r.leases.used end
    if r.in_flight ~= r.was then write('in_flight', r.in_flight) end
    if r.tenant_list and #r.tenant_list > 0 then
      write('deficit', r.deficit)
      serve(r)
    end
    if #words > 0 then
      call('HSET', r.key, unpack(words))
      if not r.tenants then call('PEXPIRE', r.key, TENANT_MS) end
    end
  end
end
