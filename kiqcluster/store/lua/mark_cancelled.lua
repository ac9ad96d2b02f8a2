#!lua flags=allow-oom
-- mark_cancelled: mark a job as cancelled.
--
-- KEYS[1]  kiq:cancelled          zset    jid by when, epoch seconds
-- KEYS[2]  it-<jid>               hash    state of an iterable job (Sidekiq >= 7.3); has the field `c` once it has run
-- ARGV[1]  jid   ARGV[2] seconds that a mark is kept   ARGV[3] how many marks are kept
-- ARGV[4]  seconds that this one is kept, if it is new   ARGV[5] "known": only if there is one, "" otherwise
--
-- Those that are kept for less time go first where there are too many.  A mark is never kept for less time than before.
-- An iterable job of Ruby reads the field `cancelled` of its state.  A state without a cursor is left alone, because
-- Ruby would raise TypeError.
-- Returns 1 if the job has such a state, else 0.  May be sent again.  Cost: O(log n).

local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time[1] - ARGV[2])
local score = string.format('%.6f', time[1] - ARGV[2] + ARGV[4] + time[2] / 1000000)
if ARGV[5] == 'known' then
  redis.call('ZADD', KEYS[1], 'XX', 'GT', score, ARGV[1])
else -- first room, so that this one is not what goes
  if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -ARGV[3]) end
  redis.call('ZADD', KEYS[1], 'GT', score, ARGV[1])
end
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' or redis.call('HEXISTS', KEYS[2], 'c') == 0 then return 0 end
redis.call('HSETNX', KEYS[2], 'cancelled', time[1])
return 1
