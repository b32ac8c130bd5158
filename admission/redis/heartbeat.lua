-- A gateway lives. ARGV: prefix, gateway, epoch, ms that its word holds; then models and, for each, how many tenants and who they are, of
-- whom it wants to know what they were served.

local gateway, epoch, alive = arg(), arg(), num()
local state = call('HMGET', P .. 'epoch', 'id', 'ready')
if state[1] ~= epoch then return { 'epoch', now } end
call('ZADD', P .. 'gateways', whole(now_ms + alive), gateway)
call('ZREMRANGEBYSCORE', P .. 'gateways', '-inf', now_ms)
local served = {}
for _ = 1, num() do
  local key, tenants = P .. 'served:' .. arg(), {}
  for i = 1, num() do tenants[i] = arg() end
  for _, v in ipairs(call('HMGET', key, unpack(tenants))) do served[#served + 1] = tonumber(v or '0') end
end
return { 'ok', now, call('ZCARD', P .. 'gateways'), math.max(tonumber(state[2]) - now, 0),
  call('GET', P .. 'limits_version') or '', served }
