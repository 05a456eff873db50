-- Makes known a list into which a results worker will move what it works on.
-- KEYS  1 takers
-- ARGV  1 list, 2 now
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
