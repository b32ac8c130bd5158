-- Loads all limits. ARGV: prefix. Reply: the version; then for each record its key, its values, and
-- the values of the file.

local out = { call('GET', P .. 'limits_version') or '' }
for _, key in ipairs(call('SMEMBERS', P .. 'limits')) do
  local kind, name = string.match(key, '^([^/]*)/(.*)$')
  if kind then
    out[#out + 1] = key
    out[#out + 1] = call('HGETALL', P .. kind .. ':' .. name)
    out[#out + 1] = call('HGETALL', P .. 'file_' .. kind .. ':' .. name)
  end
end
return out
