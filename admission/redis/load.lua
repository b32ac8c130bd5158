-- All limits. ARGV: prefix. Answers version, then kind, name, values, and values of the file, for each.

local out = { call('GET', P .. 'limits_version') or '' }
for _, key in ipairs(call('SMEMBERS', P .. 'limits')) do
  local kind, name = string.match(key, '^([^/]*)/(.*)$')
  out[#out + 1] = key
  out[#out + 1] = call('HGETALL', P .. kind .. ':' .. name)
  out[#out + 1] = call('HGETALL', P .. 'file_' .. kind .. ':' .. name)
end
return out
