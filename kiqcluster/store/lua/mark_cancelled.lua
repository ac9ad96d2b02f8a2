#!lua flags=allow-oom
-- mark_cancelled: mark a job as cancelled.
--
-- KEYS[1]  kiq:cancelled          zset    jid by when, epoch seconds
-- KEYS[2]  it-<jid>               hash    state of an iterable job (Sidekiq >= 7.3); has the field `c` once it has run
-- ARGV[1]  jid   ARGV[2] seconds that a mark is kept   ARGV[3] how many marks are kept
--
-- An iterable job of Ruby reads the field `cancelled` of its state.  A state without a cursor is left alone, because
-- Ruby would raise TypeError.
-- Returns 1 if the job has such a state, else 0.  May be sent again.  Cost: O(log n).

local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] .. '.' .. string.format('%06d', time[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time[1] - ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3])
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' or redis.call('HEXISTS', KEYS[2], 'c') == 0 then return 0 end
redis.call('HSETNX', KEYS[2], 'cancelled', time[1])
return 1
