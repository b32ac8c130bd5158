-- Replaces all keys by those that a gateway remembers, if Redis has an older version or none, or
-- has the same version and no keys. KEYS: the hash of the keys, the version. ARGV: the version of
-- what the gateway remembers, then the id and the text of each key. The answer is 1 if the keys
-- were replaced. change.lua says what a version is. Keys whose version has no number get one, so
-- that no other gateway replaces them in its turn.
local function number(version) return tonumber(string.match(version, '^(%d+)%-') or '0') end

local version, remembered = redis.call('GET', KEYS[2]), ARGV[1]
local is_lost = version == remembered and redis.call('EXISTS', KEYS[1]) == 0
if version and not is_lost then
  if not string.match(version, '^%d+%-') or number(version) >= math.max(number(remembered), 1) then return 0 end
end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if number(remembered) == 0 then
  local time = redis.call('TIME')
  remembered = string.format('%.0f-%s', time[1] * 1000 + math.floor(time[2] / 1000), remembered)
end
redis.call('SET', KEYS[2], remembered)
return 1
