-- In the place of redis.call, after a script has failed because a key has another type than a command
-- takes. Such a key is damaged, as a number may be: it is removed, and the command finds none.
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
  if type(reply) == 'table' and reply.err then return redis.call(command, key, ...) end
  return reply
end
