-- Changes one key together with the version. KEYS: the hash of the keys, the version. ARGV: a
-- random text, the id of the key, and its new text; with an empty text the key is removed. The
-- answer is 1 if a key was added or removed, the version of before ('' for none), and the new one.
-- A version is a number that only grows, a hyphen and a random text. The number is at least Redis'
-- time in ms, so that a version of an earlier release, which has no number, may come between two
-- others.
local time = redis.call('TIME')
local before = redis.call('GET', KEYS[2]) or ''
local number = math.max((tonumber(string.match(before, '^(%d+)%-')) or 0) + 1, time[1] * 1000 + math.floor(time[2] / 1000))
local changed
if ARGV[3] ~= '' then
  changed = redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else
  changed = redis.call('HDEL', KEYS[1], ARGV[2])
end
local version = string.format('%.0f-%s', number, ARGV[1])
redis.call('SET', KEYS[2], version)
return { tostring(changed), before, version }
