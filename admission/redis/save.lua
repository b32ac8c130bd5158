-- Changes limits, unless somebody else has since. ARGV: prefix; the version that the changes are
-- based on; then for each record its key, the number of words of its values and these words (-1:
-- the record is deleted), and the same for the values of the file. Reply: 1, or 0 if the store has
-- another version.

local current = call('GET', P .. 'limits_version') or ''
if arg() ~= current then return 0 end

local function write(key)
  local n = num()
  call('DEL', key)
  if n > 0 then call('HSET', key, unpack(ARGV, cursor + 1, cursor + n)) end
  cursor = cursor + math.max(n, 0)
  return n >= 0
end

while cursor < #ARGV do
  local key = arg()
  local kind, name = string.match(key, '^([^/]*)/(.*)$')
  if write(P .. kind .. ':' .. name) then
    call('SADD', P .. 'limits', key)
  else
    call('SREM', P .. 'limits', key)
  end
  write(P .. 'file_' .. kind .. ':' .. name)
end
call('SET', P .. 'limits_version', whole(math.max(now, (number(current) or 0) + 1)))
return 1
