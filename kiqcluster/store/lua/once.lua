#!lua
-- once: run commands unless they have run.  A caller that lost the reply sends them again under the same number.
--
-- KEYS[1]  the sender's record    string  number of its latest batch that has run
-- KEYS[2+] keys that the commands change
-- ARGV[1]  number of this batch, higher than that of the previous batch
-- ARGV[2]  seconds that the record is kept
-- then for each command: its name, index into KEYS, number of words (at most 1 000), words
--
-- The script writes the record first and skips a command that Redis refuses: nothing runs twice.
-- Returns {1 if they ran, 0 if they had run before; Redis' errors for the refused commands}.  Cost: O(commands).

if tonumber(ARGV[1]) <= tonumber(redis.call('GET', KEYS[1]) or '0') then return {0, {}} end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])

local refusals, at = {}, 3
while at < #ARGV do
  local last = at + 2 + tonumber(ARGV[at + 2])
  local fine, refusal = pcall(redis.call, ARGV[at], KEYS[tonumber(ARGV[at + 1])], unpack(ARGV, at + 3, last))
  if not fine then
    refusals[#refusals + 1] = type(refusal) == 'table' and refusal.err or tostring(refusal)
  end
  at = last + 1
end
return {1, refusals}
