-- Changes one key together with the version. KEYS: the hash of the keys, the version. ARGV: a random
-- text, the id of the key, and its new text; without a text the key is removed. The answer is 1 if a
-- key was added or removed. A version is a number that only grows, a hyphen and a random text. The
-- number is at least Redis' time in ms, so that a version of an earlier release, which has no number,
-- may come between two others.
local time = redis.call('TIME')
local before = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)%-')) or 0
local number = math.max(before + 1, time[1] * 1000 + math.floor(time[2] / 1000))
local changed
if ARGV[3] then
  changed = redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else
  changed = redis.call('HDEL', KEYS[1], ARGV[2])
end
redis.call('SET', KEYS[2], string.format('%.0f-%s', number, ARGV[1]))
return changed
