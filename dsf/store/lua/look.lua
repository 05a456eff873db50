-- Reads what beat has to know of one batch.
-- ARGV  1 entries, 2 overrides, 3 beginning of the names of queues, 4 beginning of the names of slots, 5 the last slot,
--       6 number of pairs p, 7 number of targets t, then p pairs, t targets of overrides, and clusters
-- Returns {entries of the pairs, overrides of the targets, number of ticks that wait for each cluster, whether each
-- has something in its last slot (1 or 0)}.
local pairs_end = 7 + tonumber(ARGV[6])
local targets_end = pairs_end + tonumber(ARGV[7])
local lengths, last = {}, {}
for i = targets_end + 1, #ARGV do
  lengths[i - targets_end] = redis.call('LLEN', ARGV[3] .. ARGV[i])
  last[i - targets_end] = redis.call('EXISTS', ARGV[4] .. ARGV[i] .. '.' .. ARGV[5])
end
return {redis.call('HMGET', ARGV[1], unpack(ARGV, 8, pairs_end)),
  redis.call('HMGET', ARGV[2], unpack(ARGV, pairs_end + 1, targets_end)), lengths, last}
