-- Puts pairs that were marked where they belong.
-- KEYS  1 entries, 2 marked
-- ARGV  1 now, then three per row: pair, its mark as it was read, 'runs', 'paused' or until when it is paused
local now = tonumber(ARGV[1])
for i = 2, #ARGV, 3 do
    local pair, mark, pause = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local cluster, scorer = model_split(pair)
    -- A mark of all pairs of a scorer has been spread over them.
    if cluster and cluster ~= '*' then
        if redis.call('HEXISTS', KEYS[1], pair) == 0 then
            model_drop(cluster, scorer, now)
        else
            local hash = PAIR .. pair
            if redis.call('HEXISTS', hash, 'score') == 1 and redis.call('HEXISTS', hash, 'value') == 0 then
                -- Of an earlier version, or of one that came while its value was not kept.
                local score = model_decoded(redis.call('HGET', hash, 'score'))
                local sum, count = 0, 0
                for _, list in ipairs({score.items or {}, score.results or {}}) do
                    if count == 0 and type(list) == 'table' then
                        for _, one in ipairs(list) do
                            local number = type(one) == 'table' and tonumber(one[2])
                            if number then
                                sum, count = sum + number, count + 1
                            end
                        end
                    end
                end
                redis.call('HSET', hash, 'value', count > 0 and string.format('%.6g', sum / count) or '')
            end
            model_place(cluster, scorer, now, pause ~= 'runs', tonumber(pause), true)
        end
    end
    -- Marked again meanwhile: once more then.
    if redis.call('HGET', KEYS[2], pair) == mark then
        redis.call('HDEL', KEYS[2], pair)
    end
end
