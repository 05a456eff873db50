-- Sends a tick that a user requested. Repeating the call with the same run changes nothing.
--
-- KEYS  1 entries (hash)  2 open runs (zset)  3 pair hash  4 queue (list)
-- ARGV  1 pair  2 run member  3 deadline (unix seconds)  4 message  5 queue limit
-- Returns "sent", "unknown" (the pair has no entry) or "full" (the queue holds too many messages).

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 'unknown'
end
if redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  return 'sent'
end
if redis.call('LLEN', KEYS[4]) >= tonumber(ARGV[5]) then
  return 'full'
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('HINCRBY', KEYS[3], 'n:scheduled', 1)
redis.call('LPUSH', KEYS[4], ARGV[4])
return 'sent'
