#!lua flags=allow-oom
-- rate: count one start against a rate, if it is within it (rates.lua).
--
-- KEYS[1]  kiq:rate:<name>   hash
-- ARGV[1]  kind   ARGV[2] largest   ARGV[3] seconds   ARGV[4] 1 if this start was promised else 0
-- ARGV[5]  holder: a start of the same holder counts once in a sliding window
--
-- Returns the seconds after which the start is allowed, as text; "0" when it was counted.
-- Cost: O(1); O(log n) for a sliding window.

-- include rates

local arguments = {ARGV[2], ARGV[3], ARGV[4]}
local rate = read_rate(ARGV[1], KEYS[1], arguments)
local wait = wait_for_start(rate, arguments)
if wait > 0 then return string.format('%.6f', wait) end
start(rate, arguments, ARGV[5])
return '0'
