#!lua flags=allow-oom
-- bulk_entries: move a slice of the entries of a bulk action, and write in the same step how far it is.  So its counts
-- are right and it goes on at the right entry, wherever the process ends that works on it.
--
-- KEYS[1], KEYS[2], KEYS[4+]  as KEYS[1], KEYS[2], KEYS[3+] of move_entries
-- KEYS[3]  kiq:bulk:<id>  hash
-- ARGV[1] to ARGV[5]  as there
-- ARGV[6], ARGV[7]  the runner, and its lease in milliseconds
-- ARGV[8]  the state that the action has to be in   ARGV[9]  its state after this slice, the last one; '' for the same
-- ARGV[10], ARGV[11]  score and payload of the last entry that was looked at; both '' if there was none
-- ARGV[12], ARGV[13]  entries that were looked at, and of them those that are meant
-- ARGV[14] reasons; then for each a text, and how many entries stay for that reason although they are meant
-- then the rows of move_entries
--
-- Nothing happens if the action is in another state (somebody has cancelled it), or another runner has it.
-- Returns {1, {index of each moved entry}, entries that the dead set dropped}, or {0}.
-- Cost: O(entries x log n).

-- include server_clock
-- include dead_set
-- include claims
-- include results
-- include batches
-- include moves
-- include bulk_state
-- include bulk_counts

local key = KEYS[3]
if not is_ours(key) then return {0} end
local moved, refusals, dropped, named = move_rows(first_row)
for _, words in ipairs(refusals) do count_reason(key, words, 1) end
write_counts(key, #moved, named - #moved - #refusals, dropped[1] + dropped[2])
return {1, moved, dropped[1] + dropped[2]}
