#!lua flags=allow-oom
-- move_jobs: move jobs from a queue to another queue, or delete them.
--
-- KEYS[1]  queue:<from>           list
-- KEYS[2]  kiq:wake:<from>        list    jobs that woke a waiting process: the queue's tail
-- KEYS[3]  queues                 set     queue names
-- KEYS[4]  queue:<to>             list    only when the jobs are moved
-- KEYS[4+] when the jobs are deleted: the keys that they have claimed (claims.lua), and their tasks
-- ARGV[1]  name of the other queue, '' to delete them
-- ARGV[2]  a mark that is no job's payload, written over the moved jobs until they are removed
-- ARGV[3], ARGV[4]  the farthest and the nearest position to search, counted from the job that is fetched next (0)
-- then for each job: its bytes, and its bytes in the other queue; when it is deleted, "<claim> <task> <jid>" or '': the
--          indexes into KEYS of the key that it has claimed and of its task (tasks.lua), 0 where it has none.  A key that
--          this jid holds is deleted with the job, and in its task the job ends as `error`
--
-- A job that is not found is left alone.  The others go to the back of the other queue in the order given.
-- Returns the index of each job moved, from 1.
-- Cost: O(jobs + their distance from the nearer end of the queue); only the jobs between the two positions are read.

-- include claims
-- include server_clock
-- include tasks

local is_moved = ARGV[1] ~= ''
local lengths = {redis.call('LLEN', KEYS[1]), redis.call('LLEN', KEYS[2])}
local total = lengths[1] + lengths[2]
local first, last = math.max(0, total - 1 - tonumber(ARGV[3])), total - 1 - tonumber(ARGV[4])

-- payload -> its positions, {list, index} each; the last one is the nearest to the end that is fetched next
local places = {}
local function look(list, from, to)
  for offset, payload in ipairs(to < from and {} or redis.call('LRANGE', KEYS[list], from, to)) do
    places[payload] = places[payload] or {}
    table.insert(places[payload], {list, from + offset - 1})
  end
end
look(1, first, math.min(last, lengths[1] - 1))
look(2, math.max(0, first - lengths[1]), last - lengths[1])

local moved, marks, sums = {}, {0, 0}, {0, 0}
for at = 5, #ARGV, 2 do
  local place = places[ARGV[at]] and table.remove(places[ARGV[at]])
  if place then
    local claim, task, jid = string.match(is_moved and '' or ARGV[at + 1], '^(%d+) (%d+) (.*)$')
    if is_moved then redis.call('LPUSH', KEYS[4], ARGV[at + 1]) end -- a refusal comes here, before any job is marked
    -- First: a claim without a job would keep out equal jobs, and a task would wait for it.
    if jid and claim ~= '0' then clear(KEYS[tonumber(claim)], jid) end
    if jid and task ~= '0' then change_event(KEYS[tonumber(task)], jid, 'error', '"deleted by hand"', '') end
    redis.call('LSET', KEYS[place[1]], place[2], ARGV[2])
    marks[place[1]] = marks[place[1]] + 1
    sums[place[1]] = sums[place[1]] + place[2]
    moved[#moved + 1] = (at - 3) / 2
  end
end
for list, count in ipairs(marks) do
  if count > 0 then
    local is_near_head = sums[list] / count < lengths[list] / 2 -- LREM stops after the last mark that it removes
    redis.call('LREM', KEYS[list], is_near_head and count or -count, ARGV[2])
  end
end
if is_moved and #moved > 0 then pcall(redis.call, 'SADD', KEYS[3], ARGV[1]) end -- on failure the jobs still run
return moved
