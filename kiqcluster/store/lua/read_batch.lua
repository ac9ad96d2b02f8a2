#!lua flags=no-writes
-- read_batch: the counts of a batch, and a page of its failures with their messages.
--
-- KEYS[1]  kiq:batch:<id>          hash    (batches.lua)
-- KEYS[2]  kiq:batch:<id>:ended    zset    jids of the jobs in `failed` and `error` by when
-- ARGV[1]  largest number of failures, 0 for none
-- ARGV[2]  number of failures to leave out before them
-- then the fields of the batch that are wanted
--
-- Returns {the fields, {} if there is no such batch, then for each failure: jid, status, arguments, messages}; the youngest failure first.
-- Cost: O(fields + failures).

-- include read_or

if redis.call('EXISTS', KEYS[1]) == 0 then return {{}} end -- no batch
local reply = {redis.call('HMGET', KEYS[1], unpack(ARGV, 3))}
local jids = {}
if tonumber(ARGV[1]) > 0 then jids = read_or({}, 'ZREVRANGE', KEYS[2], ARGV[2], ARGV[2] + ARGV[1] - 1) end
for _, jid in ipairs(jids) do
  local found = redis.call('HMGET', KEYS[1], ':' .. jid, 'p' .. jid, 'm' .. jid)
  reply[#reply + 1] = {jid, found[1], found[2], found[3]}
end
return reply
