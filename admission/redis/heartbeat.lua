-- The heartbeat of a gateway. It is also published: a gateway that hears no heartbeat, not even its
-- own, subscribes again.
--
-- ARGV: prefix; gateway; epoch; writes at its last one; ms that the gateway then counts as live;
-- number of models, and for each: its name, the number of tenants, and their names.
--
-- Replies:
--   { 'epoch', now }  the store is in another epoch, or has come back from an older snapshot
--   { 'ok', now, gateways, us until claims are granted, version of the limits, served, writes }
-- served has the tokens that each of the tenants was granted of the model, in the order of ARGV.

local gateway, epoch, seen, alive = arg(), arg(), num(), num()
local state = call('HMGET', P .. 'epoch', 'id', 'ready', last_write(gateway), 'forgotten')
if state[1] ~= epoch or has_lost(state[3], state[4], seen) then return { 'epoch', now } end
call('ZADD', P .. 'gateways', whole(now_ms + alive), gateway)
call('ZREMRANGEBYSCORE', P .. 'gateways', '-inf', now_ms)
call('ZREMRANGEBYSCORE', P .. 'gateways', '(' .. whole(now_ms + alive), '+inf') -- the clock was ahead
publish('H', gateway, '')
local served = {}
for _ = 1, num() do
  local key, tenants = P .. 'served:' .. arg(), {}
  for i = 1, num() do tenants[i] = arg() end
  for _, v in ipairs(call('HMGET', key, unpack(tenants))) do served[#served + 1] = number(v) or 0 end
end
return { 'ok', now, call('ZCARD', P .. 'gateways'), pause_left(state[2]),
  call('GET', P .. 'limits_version') or '', served, count_write(gateway) }
