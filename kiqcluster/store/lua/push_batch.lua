#!lua
-- push_batch: push jobs of a batch to one queue, and count them in it.  Each slice of jobs is pushed and counted, or
-- neither.
--
-- KEYS[1]  queues                 set     queue names
-- KEYS[2]  queue:<name>           list
-- KEYS[3]  kiq:batch:<id>          hash    (batches.lua)
-- ARGV[1]  name of the queue
-- then for each job: jid, payload, its arguments as JSON, "" if they are not kept
--
-- Jobs that the batch knows already, or that are named twice, are left out, so it may be sent again after a lost reply.
-- Returns PUSHED, or why the batch takes no jobs: UNKNOWN, CANCELLED, COMPLETE.  Cost: O(jobs).

-- include server_clock
-- include batches

local SLICE = 200 -- jobs

local reason = refusal_of_batch(KEYS[3])
if reason then return reason end

local function push(payloads, jids, arguments)
  redis.call('LPUSH', KEYS[2], unpack(payloads))
  local fine, failure = pcall(add_jobs, KEYS[3], jids, arguments)
  if fine then return end
  redis.call('LTRIM', KEYS[2], #payloads, -1) -- nobody has seen them
  error(failure)
end

redis.pcall('SADD', KEYS[1], ARGV[1]) -- on failure the jobs still run
for first = 2, #ARGV, 3 * SLICE do
  local fields, last = {}, math.min(first + 3 * SLICE - 1, #ARGV)
  for at = first, last, 3 do fields[#fields + 1] = ':' .. ARGV[at] end
  local known = redis.call('HMGET', KEYS[3], unpack(fields))
  local payloads, jids, arguments, is_named = {}, {}, {}, {}
  for at = first, last, 3 do
    if not known[(at - first) / 3 + 1] and not is_named[ARGV[at]] then
      is_named[ARGV[at]] = true
      jids[#jids + 1], payloads[#payloads + 1], arguments[#arguments + 1] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    end
  end
  if #jids > 0 then push(payloads, jids, arguments) end
end
return 'PUSHED'
