-- Ends the work on claimed pairs: what stands in the backend now, and when to look again.
-- KEYS  1 writes, 2 leases, 3 written, 4 stats, 5 refused, then the hash of each pair
-- ARGV  eight per pair: pair | end of its lease | now | next look or '' for none | written record as it was read ('' none) |
--       written record now ('' none) | changes that were seen | what to add to counters, as `counter amount ...`
local ROW = 8

local function finish(hash, pair, lease, now, next_look, written_before, written_now, changes, counts)
    for counter, amount in string.gmatch(counts, '(%S+) (%S+)') do
        redis.call('HINCRBY', KEYS[4], counter, amount)
    end
    if tonumber(changes) > 0 and redis.call('HEXISTS', hash, 'changes') == 1 then
        redis.call('HINCRBY', hash, 'changes', '-' .. changes)
    end
    redis.call('HDEL', KEYS[5], pair)
    local mine = tonumber(redis.call('ZSCORE', KEYS[2], pair) or '0') == tonumber(lease)
    if not mine then
        -- The lease ran out and another writer took over; it looks for itself, and then again because of this.
        redis.call('HDEL', KEYS[3], pair)
        redis.call('ZADD', KEYS[1], 'LT', now, pair)
        return
    end
    redis.call('ZREM', KEYS[2], pair)
    local look = redis.call('ZSCORE', KEYS[1], pair)
    local touched = not look or tonumber(look) ~= tonumber(lease)
    local stored = redis.call('HGET', KEYS[3], pair) or ''
    if stored ~= written_before then
        -- The record was declared wrong meanwhile.
        redis.call('HDEL', KEYS[3], pair)
        touched = true
    elseif written_now == '' then
        redis.call('HDEL', KEYS[3], pair)
    elseif written_now ~= written_before then
        redis.call('HSET', KEYS[3], pair, written_now)
    end
    if touched then
        redis.call('ZADD', KEYS[1], now, pair)
    elseif next_look == '' then
        redis.call('ZREM', KEYS[1], pair)
    else
        redis.call('ZADD', KEYS[1], next_look, pair)
    end
end

-- What Redis has against one pair does not stop the others, and is answered.
local failed
for i = 0, #ARGV / ROW - 1 do
    local fine, answer = pcall(finish, KEYS[6 + i], unpack(ARGV, i * ROW + 1, (i + 1) * ROW))
    if not fine then
        failed = type(answer) == 'table' and answer or {err = 'ERR ' .. tostring(answer)}
    end
end
return failed or 'OK'
