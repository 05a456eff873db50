-- Pushes ticks once more whose delivery an end of Redis may have cut off: it may pop a tick for an agent and end before
-- the answer is sent. Only those of open runs, and none that waits in its queue.
--
-- KEYS  1 open runs (zset), then the queue (list) of each row
-- ARGV  two per row: run member | message
-- Returns the number of ticks pushed.

local pushed = 0
for i = 1, #ARGV, 2 do
  local queue = KEYS[(i + 3) / 2]
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) and not redis.call('LPOS', queue, ARGV[i + 1]) then
    redis.call('LPUSH', queue, ARGV[i + 1])
    pushed = pushed + 1
  end
end
return pushed
