-- Gives one writer the pairs that have to be looked at, longest waiting first.
-- KEYS  1 writes, 2 leases
-- ARGV  1 now, 2 end of the lease, 3 most pairs, 4 the latest end of a lease: a later one is of a clock that was ahead
-- Returns {seconds until the next look is due or '', pair, ...}.
local now, lease, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local claimed = {''}
for _, pair in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[4], '+inf')) do
    redis.call('ZREM', KEYS[2], pair)
    redis.call('ZADD', KEYS[1], 'LT', ARGV[1], pair)
end
while #claimed <= wanted do
    local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, wanted)
    if #due == 0 then
        break
    end
    for _, pair in ipairs(due) do
        local taken = tonumber(redis.call('ZSCORE', KEYS[2], pair) or '0')
        if taken > now then
            -- Somebody works on it and it changed again. A moment after the lease's end, not at it: the end itself
            -- means "not changed since it was claimed".
            redis.call('ZADD', KEYS[1], taken + 0.001, pair)
        elseif #claimed <= wanted then
            redis.call('ZADD', KEYS[1], lease, pair)
            redis.call('ZADD', KEYS[2], lease, pair)
            table.insert(claimed, pair)
        end
    end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
    claimed[1] = tostring(math.max(0, tonumber(first[2]) - now))
end
return claimed
