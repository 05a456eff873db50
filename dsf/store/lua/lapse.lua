-- Moves pairs whose score has expired to the expired ones, and marks those whose pause is over. Readers do not wait for
-- it: they count by the times in the index. It is what tells them that something changed.
-- A score of a clock that was ahead, and has been set right since, becomes one that was measured now, as it was at the
-- latest: else it would look fresh, and be used, until that time comes.
-- KEYS  1 scorers of the model, 2 writes
-- ARGV  1 now, 2 most pairs per call, 3 seconds by which clocks may differ
-- Returns how many there were.
local now, left = tonumber(ARGV[1]), tonumber(ARGV[2])
local count = 0
-- By this worker's clock and that of Redis: of two that differ by more, one is wrong and nothing is changed.
local latest = math.max(now, tonumber(redis.call('TIME')[1])) + tonumber(ARGV[3])

local function set_right(pair, cluster, scorer)
    local hash = PAIR .. pair
    local known = redis.call('HMGET', hash, 'last_success', 'valid_until', 'score')
    local measured, until_ = string.format('%.6f', now),
        string.format('%.6f', (tonumber(known[2] or nil) or 0) - (tonumber(known[1] or nil) or now) + now)
    redis.call('HSET', hash, 'last_success', measured, 'valid_until', until_)
    if known[3] then
        -- As text: decoded and encoded again, an empty list would become an object.
        redis.call('HSET', hash, 'score', (string.gsub(known[3], '"at":[^,]+,"valid_until":[^,]+',
            '"at":' .. measured .. ',"valid_until":' .. until_, 1)))
    end
    -- LT: a pair that already waits keeps its place.
    redis.call('ZADD', KEYS[2], 'LT', measured, pair)
    model_place(cluster, scorer, now, nil, nil, true)
end

for _, scorer in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    for _, cluster in ipairs(left > count and redis.call('ZRANGEBYSCORE', MODEL .. 'ages:' .. scorer,
        string.format('(%.6f', latest), '+inf', 'LIMIT', 0, left - count) or {}) do
        set_right(cluster .. '/' .. scorer, cluster, scorer)
        count = count + 1
    end
    local index = MODEL .. 'states:' .. scorer
    for _, state in ipairs({'ok', 'empty', 'paused'}) do
        local base = MODEL_RANK[state] * MODEL_SPAN
        local over = left > count and redis.call('ZRANGEBYSCORE', index, string.format('%.0f', base),
            string.format('%.6f', base + now), 'WITHSCORES', 'LIMIT', 0, left - count) or {}
        for i = 1, #over, 2 do
            local cluster, pair = over[i], over[i] .. '/' .. scorer
            count = count + 1
            if state == 'paused' then
                model_mark(pair)
            else
                local place = MODEL_RANK.expired * MODEL_SPAN + tonumber(over[i + 1]) - base
                redis.call('ZADD', index, string.format('%.6f', place), cluster)
                redis.call('ZREM', MODEL .. 'values:' .. scorer, cluster)
                model_leave_group(cluster, scorer)
                model_weigh(cluster, MODEL_WEIGHT[MODEL_RANK.expired] - MODEL_WEIGHT[MODEL_RANK[state]])
                model_changed(pair)
            end
        end
    end
end
return count
