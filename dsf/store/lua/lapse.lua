-- Moves pairs whose score has expired to the expired ones, and marks those whose pause is over. Readers do not wait for
-- it: they count by the times in the index. It is what tells them that something changed.
-- KEYS  1 scorers of the model
-- ARGV  1 now, 2 most pairs per call
-- Returns how many there were.
local now, left = tonumber(ARGV[1]), tonumber(ARGV[2])
local count = 0
for _, scorer in ipairs(redis.call('SMEMBERS', KEYS[1])) do
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
