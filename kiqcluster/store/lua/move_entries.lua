#!lua flags=allow-oom
-- move_entries: move entries of a sorted set to queues, to the dead set, or to another score or name, or delete them.
-- Each move happens as a whole.
--
-- KEYS[1]  schedule, retry, dead  zset    payloads by score; or a line of parked jobs (parked.lua), to delete some
-- KEYS[2]  queues                 set     queue names
-- KEYS[3+] queue:<name>, dead     destinations of pushed (lists) and buried (zset) entries; only those that are used,
--          because an ACL may forbid others
-- ARGV[1]  now, epoch seconds
-- ARGV[2]  highest score of an entry that is moved (now, for due entries); '' for no limit.  Redis' own time replaces it
--          when the caller's clock is ahead (server_clock.lua)
-- ARGV[3]  new score of an entry that cannot be moved; '' leaves it where it is
-- ARGV[4], ARGV[5]  limits of the dead set, applied when something was buried (dead_set.lua): seconds that an entry is
--          kept, and how many are kept, less one
-- then for each entry: old bytes, verb, index into KEYS, name of the queue, new bytes
--   verb "push": LPUSH the new bytes; "bury": ZADD them to the dead set, as of now; "drop": remove it;
--   "defer": the new bytes are its new score; "rename": it gets the new bytes and keeps its score (if the set has an
--   entry with these bytes already, it is left alone: the two would become one)
--   verb "clear" (with the bytes of the entry before it): if that is moved, the key is deleted if its value is the name,
--   the jid of that entry (claims.lua); before the entry goes: a claim without a job would keep out equal jobs
--   verb "event" (likewise, behind its "clear"): if it is moved, the job with the jid that is the name ends as `error` in
--   the batch of this key, with the new bytes as its messages (batches.lua)
--   verb "cancel" (likewise): the same, of a job that ends because its batch was cancelled
--   verb "tell" (likewise): who waits for a job is told the new bytes; they are kept for as many seconds as the name says
--   (results.lua); one that cannot be written keeps no entry
--   verb "unmark" (likewise): the name, the jid of that entry, is removed from a sorted set (kiq:cancelled)
--
-- An entry is moved only if it is still there, and no higher than ARGV[2]: another poller may have been faster, and
-- Ruby's web page may have rescheduled it.  This script never decodes payloads (cjson mangles numbers).
-- If Redis refuses to move an entry (its queue's key is not a list), the other entries are still moved.
-- Returns {{index of each moved entry, from 1}, {Redis' error and the key, for each entry that could not be moved},
--          {dead entries dropped because they were too old, because they were too many}}.
-- Cost: O(entries x log n).

-- include server_clock
-- include dead_set
-- include claims
-- include results
-- include batches
-- include moves

local moved, refusals, dropped = move_rows(6)
return {moved, refusals, dropped}
