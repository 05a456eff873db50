-- Forgets runs, books, state and history of pairs that no longer exist, and has their objects looked at.
-- A run of them that is heard of later is not mistaken for one of a pair that is added again.
-- KEYS  1 open runs, 2 lost runs, 3 writes
-- ARGV  1 now, 2 prefix of pair hashes, 3 prefix of histories, 4... pairs
local gone = {}
for i = 4, #ARGV do
    gone[ARGV[i]] = true
    redis.call('DEL', ARGV[2] .. ARGV[i], ARGV[3] .. ARGV[i])
    redis.call('ZADD', KEYS[3], 'LT', ARGV[1], ARGV[i])
end
for i = 1, 2 do
    for _, member in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
        if gone[string.match(member, '^(.*)/[^/]*$')] then
            redis.call('ZREM', KEYS[i], member)
        end
    end
end
