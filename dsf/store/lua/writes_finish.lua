-- Ends the work on a claimed pair: what stands in the backend now, and when to look again.
-- KEYS  1 writes, 2 leases, 3 written, 4 stats, 5 pair hash, 6 refused
-- ARGV  1 pair, 2 end of its lease, 3 now, 4 next look or '' for none, 5 written record as it was read ('' none),
--       6 written record now ('' none), 7 changes that were seen, 8... counter, amount
for i = 8, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1])
end
if tonumber(ARGV[7]) > 0 and redis.call('HEXISTS', KEYS[5], 'changes') == 1 then
    redis.call('HINCRBY', KEYS[5], 'changes', '-' .. ARGV[7])
end
redis.call('HDEL', KEYS[6], ARGV[1])
local mine = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') == tonumber(ARGV[2])
if not mine then
    -- The lease ran out and another writer took over; it looks for itself, and then again because of this.
    redis.call('HDEL', KEYS[3], ARGV[1])
    redis.call('ZADD', KEYS[1], 'LT', ARGV[3], ARGV[1])
    return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
local look = redis.call('ZSCORE', KEYS[1], ARGV[1])
local touched = not look or tonumber(look) ~= tonumber(ARGV[2])
local stored = redis.call('HGET', KEYS[3], ARGV[1]) or ''
if stored ~= ARGV[5] then
    -- The record was declared wrong meanwhile.
    redis.call('HDEL', KEYS[3], ARGV[1])
    touched = true
elseif ARGV[6] == '' then
    redis.call('HDEL', KEYS[3], ARGV[1])
elseif ARGV[6] ~= ARGV[5] then
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[6])
end
if touched then
    redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
elseif ARGV[4] == '' then
    redis.call('ZREM', KEYS[1], ARGV[1])
else
    redis.call('ZADD', KEYS[1], ARGV[4], ARGV[1])
end
return 1
