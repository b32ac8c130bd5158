-- Replaces all keys by those that a gateway remembers, if Redis has an older version. KEYS: the hash of
-- the keys, the version. ARGV: the version of what the gateway remembers, then the id and the text of
-- each key. The answer is 1 if the keys were replaced. change.lua says what a version is.
local function number(version) return tonumber(string.match(version, '^(%d+)%-')) end

local version = redis.call('GET', KEYS[2])
if version and not number(version) then return 0 end
if version and number(version) >= number(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[2], ARGV[1])
return 1
