-- What any gateway may do with a task. ARGV: prefix; gateway; writes at its last one; verb; tenant;
-- id (for find: its key); number. The number is 0 for get and find, for end the cost by the
-- caller's word (-1: unknown), and ms for renew.
--
-- Replies:
--   { 'wait', now }     nothing is known for a time after the store has lost its state
--   { 'absent', now }   there is no such task, or nobody has reported it
--   { 'unknown', now }  the tenant has no such task
--   { 'over', now }     the task was the tenant's, and has ended
--   { 'ended', now }    the task of the key was completed a short time ago
--   { 'ok', now, model, tokens, ms left, id, writes }

local gateway, seen, verb, tenant, id, given = arg(), num(), arg(), arg(), arg(), num()
local state = call('HMGET', P .. 'epoch', 'ready', last_write(gateway), 'forgotten')
if not state[1] or pause_left(state[1]) > 0 or has_lost(state[2], state[3], seen) then return { 'wait', now } end
if verb == 'find' then
  id = call('GET', task_key(tenant, id)) or ''
  if id == 'ended' then return { 'ended', now } end
end
local key = P .. 'task:' .. id
local v = call('HMGET', key, 'model', 'tenant', 'tokens', 'replica', 'key', 'used', 'until')
if not v[1] then
  local owner = call('GET', P .. 'ended:' .. id)
  if not owner then return { 'absent', now } end
  return { owner == tenant and 'over' or 'unknown', now }
end
if v[2] ~= tenant then return { 'unknown', now } end
local tokens, used = number(v[3]) or 0, number(v[6]) or 0
-- Redis may expire the record a millisecond late, so the expiry of the lease counts.
local expiry = call('ZSCORE', P .. 'leases:' .. v[1], id)
if not expiry or tonumber(expiry) <= now_ms then return { 'unknown', now } end

if verb == 'end' then
  forget(id, given >= 0 and given or tokens)
  if running(id) == 0 then release(id, v[1], tenant, v[4], false) end
  adjust(v[1], tenant, refund(tokens, used, given >= 0 and given or nil), 0)
  announce('') -- this gateway is told too: the task may be another's
  save()
  publish('E', gateway, id)
elseif verb == 'renew' then
  local until_ms = number(v[7]) or now_ms + 14400000 -- an older version has not kept it
  given = math.min(given, until_ms - now_ms)
  if given < 1 then return { 'unknown', now } end -- its last request alone holds its lease
  hold(id, { model = v[1], tenant = tenant, replica = v[4] }, now_ms + given)
  record(id, { model = v[1], tenant = tenant, tokens = tokens, replica = v[4], key = v[5], until_ms = until_ms }, given)
  save()
  publish('N', gateway, whole(given) .. ':' .. id)
end
local writes = seen
if verb == 'end' or verb == 'renew' then writes = count_write(gateway) end
return { 'ok', now, v[1], tokens, math.max(call('PTTL', key), 0), id, writes }
