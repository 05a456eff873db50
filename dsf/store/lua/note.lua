-- Notes a message as taken and not finished, and lets go of what it was made of: in one step, so that it is always
-- somewhere.
-- KEYS  1 unfinished messages, 2 when they were taken, 3 list of the worker's own, 4 refused results
-- ARGV  1 tag, empty when nothing is noted, 2 message, 3 now, 4 how many of that list it was made of,
--       5... reason and number of what was refused among them, in turns
if ARGV[1] ~= '' then
    redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
if tonumber(ARGV[4]) > 0 then
    -- The newest: after a broken connection an older one may be left.
    redis.call('LPOP', KEYS[3], ARGV[4])
end
for i = 5, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1])
end
