-- Forgets a message that was noted as unfinished.
-- KEYS  1 unfinished messages, 2 when they were taken
-- ARGV  1 tag
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
