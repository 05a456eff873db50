-- Says that this worker is alive, and puts back what is kept in the lists of workers that are not.
-- KEYS  1 takers, 2 results queue, 3 when unacknowledged results were taken
-- ARGV  1 now, 2 time before which a worker is taken for dead, 3 the latest time that another worker's clock may show,
--       4... lists of this worker
-- Returns how many messages were put back.
for i = 4, #ARGV do
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
end
-- A clock was ahead, and what a dead worker left would wait until that time comes.
for _, key in ipairs({KEYS[1], KEYS[3]}) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. ARGV[3], '+inf')) do
        redis.call('ZADD', key, ARGV[1], member)
    end
end
local count = 0
for _, list in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])) do
    -- To the end from which is popped: they have waited longest.
    while redis.call('LMOVE', list, KEYS[2], 'LEFT', 'RIGHT') do
        count = count + 1
    end
    redis.call('ZREM', KEYS[1], list)
end
return count
