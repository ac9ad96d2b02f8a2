-- read_or: reads of keys that others may have broken (included by scripts that read several).

-- Returns the reply to a read, `otherwise` for a key of another type.  Raises each other error.
local function read_or(otherwise, ...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then return otherwise end
  error(reply)
end
