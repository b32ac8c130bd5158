-- Publishes rows of one writer and says that the writer was heard of. ARGV: the prefix of all keys,
-- the writer, its last mark, its new mark, its state, the name of its gateway, when the lists of
-- writers expire. Then follow for each hash its kind, its period, when it expires, the number of
-- its fields, and the fields and their values. A value begins with a number that only grows, so a
-- value that comes late or twice changes nothing. A tally (kind spent) can also become smaller: it
-- is written if Redis has the last mark, because the call is not late then. The field # has the sum
-- of the first numbers. If Redis has another mark than the last one, rows may be missing, and the
-- state is partial. The answer is 1 if Redis has the last mark, else 0.
local prefix, writer = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local before = redis.call('HGET', prefix .. 'writers', writer) or ' '
local known = string.match(before, '^[^ ]*') == ARGV[3]

-- first returns the first number of a value; 0 for a value that is absent or damaged.
local function first(value) return tonumber(string.match(value or '', '^%d+') or '0') end

local i = 8
while ARGV[i] do
  local kind, period, expires, fields = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local key, more = prefix .. kind .. ':' .. period .. ':' .. writer, 0
  i = i + 4
  for _ = 1, fields do
    local field, value = ARGV[i], ARGV[i + 1]
    local grown = first(value) - first(redis.call('HGET', key, field) or nil)
    if grown >= 0 or known and kind == 'spent' then
      redis.call('HSET', key, field, value)
      more = more + grown
    end
    i = i + 2
  end
  redis.call('HSET', key, '#', string.format('%.0f', first(redis.call('HGET', key, '#') or nil) + more))
  redis.call('EXPIREAT', key, expires)
  redis.call('SADD', prefix .. 'by:' .. period, writer)
  redis.call('EXPIREAT', prefix .. 'by:' .. period, ARGV[7])
end

local ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local state = known and ARGV[5] or 'partial'
redis.call('HSET', prefix .. 'writers', writer, ARGV[4] .. ' ' .. ms .. ' ' .. state .. ' ' .. ARGV[6])
return known and 1 or 0
