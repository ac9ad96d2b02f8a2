#!lua flags=allow-oom
-- save_iteration: an iterable job that runs saves where it is.
--
-- KEYS[1]  kiq:inflight:<id>   hash   "<token>:<queue>" -> payload
-- KEYS[2]  it-<jid>            hash   state of an iterable job, in Sidekiq's form: ex, c, rt, cancelled
-- ARGV[1]  field of the unit   ARGV[2] ex   ARGV[3] c   ARGV[4] rt   ARGV[5] seconds that the state is kept
--
-- Returns "GO"; "CANCELLED" when somebody has cancelled the job, as Ruby's clients do; "LOST" when the unit is no
-- longer held, and nothing is written.  May be sent again.  Cost: O(1).

-- include hand_lists

if not (redis.call('HGET', KEYS[1], ARGV[1]) or take_over(KEYS[1], ARGV[1])) then return 'LOST' end
redis.call('HSET', KEYS[2], 'ex', ARGV[2], 'c', ARGV[3], 'rt', ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return redis.call('HEXISTS', KEYS[2], 'cancelled') == 1 and 'CANCELLED' or 'GO'
