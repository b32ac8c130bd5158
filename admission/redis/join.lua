-- A gateway joins, after its start or after an outage.
--
-- ARGV: prefix; gateway; the epoch that it knew ('' for none); writes at its last one in it; 1 if
-- it has nothing to report; ms that the gateway then counts as live; how many gateways it knows if
-- it returns after an outage, else 0; when it was told to share again (0: not yet); ms that a lease
-- lasts.
--
-- Reply: { 'ok', now, epoch, us to wait, when to share again, gateways, version of the limits,
-- writes }
--
-- An epoch is the time during which the store has lost nothing. A gateway that finds no epoch, or
-- that of an older snapshot, makes one. If that gateway knew an earlier epoch or holds leases, the
-- store has lost its state: nothing is granted until the others had time to report theirs. A
-- gateway that knows nothing cannot tell an emptied store from a new one. The first gateway that
-- can corrects the epoch, a second later at most.

local gateway, known, seen, fresh, alive, returning, at = arg(), arg(), num(), arg() == '1', num(), num(), num()
local lease_ms = num()
local YOUNG, RETURN, LONGEST, HEARD_MS = 5000000, 600000, 3000000, 1500

local state = call('HMGET', P .. 'epoch', 'id', 'born', 'ready', last_write(gateway), 'lease', 'forgotten', 'writes')
local id, born, ready = state[1], number(state[2]), number(state[3])
if id and not (born and ready and (not state[7] or number(state[7]))) then -- it is damaged
  call('DEL', P .. 'epoch')
  id = nil
end
if not id or known == id and has_lost(state[4], state[6], seen) then
  id, born, ready = whole(now) .. '-' .. gateway, now, fresh and now or now + PAUSE
  call('HSET', P .. 'epoch', 'id', id, 'born', whole(born), 'ready', whole(ready))
elseif not fresh and known ~= id and known ~= '' and ready == born and now - born < YOUNG then
  ready = now + PAUSE
  call('HSET', P .. 'epoch', 'ready', whole(ready))
end
if lease_ms > (number(state[5]) or 0) then call('HSET', P .. 'epoch', 'lease', whole(lease_ms)) end
call('ZADD', P .. 'gateways', whole(now_ms + alive), gateway)
call('ZREMRANGEBYSCORE', P .. 'gateways', '-inf', now_ms)
-- All gateways that were without the store share again at one moment, when each had time to report
-- what it admitted alone. That is RETURN after the last gateway was heard again, and LONGEST after
-- the first one at most: some may be gone. A moment that is too far away is of a clock that has
-- gone back since.
local function is_near(moment) return moment > now and moment <= now + LONGEST end
if returning > 0 and (at == 0 or at > now) then
  local agreed = tonumber(call('GET', P .. 'return') or nil) or 0
  if is_near(agreed) then at = agreed
  elseif not is_near(at) then at = now + LONGEST end
  local heard = call('ZCOUNT', P .. 'gateways', whole(now_ms + alive - HEARD_MS), '+inf')
  if heard >= returning then at = math.min(at, now + RETURN) end
  if at ~= agreed then call('SET', P .. 'return', whole(at), 'PX', 4000) end
end
-- Each start of a gateway has a name of its own, so the last writes of those that are gone are
-- removed when there are many. One that was silent may come back.
if call('HLEN', P .. 'epoch') > 200 then
  call('HSET', P .. 'epoch', 'forgotten', call('HGET', P .. 'epoch', 'writes') or '0')
  for _, field in ipairs(call('HKEYS', P .. 'epoch')) do
    local name = string.match(field, '^by:(.*)$')
    if name and not call('ZSCORE', P .. 'gateways', name) then call('HDEL', P .. 'epoch', field) end
  end
end
publish('H', gateway, '') -- else a gateway that may not publish would share until its next heartbeat
return { 'ok', now, id, math.max(pause_left(ready), at - now), at, call('ZCARD', P .. 'gateways'),
  call('GET', P .. 'limits_version') or '', count_write(gateway) }
