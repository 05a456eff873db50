-- Takes or extends a lease.
-- KEYS  1 lease
-- ARGV  1 token of who asks, 2 milliseconds
-- Returns whether it is theirs.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
    -- No lease is that much longer than another: the clock of Redis was set back, and its holder may be dead.
    if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) + 60000 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
