-- Leaves a request for new credentials and wakes the hub controller.
-- KEYS  1 requests, 2 list that wakes
-- ARGV  1 cluster, 2 request, 3 longest length of that list
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('LPUSH', KEYS[2], '1')
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[3]) - 1)
