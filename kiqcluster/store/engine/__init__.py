"""The operations of a worker on units.

Read in this order:
engine         each operation as a typed call: join, reserve, settle, resync, recover, move_due
units          their values
begin_calls    the calls of begin.lua and release.lua
reserve_calls  the call of reserve.lua; settle_calls: outcomes become rows of settle.lua
duties         who does what somebody in the fleet has to do now
wait_lists     the lists into which pushes are moved for idle processes
"""
