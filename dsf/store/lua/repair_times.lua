-- Repairs pairs with times in the future, after the time of Redis went backwards. The measurement time of such a score
-- becomes now, the latest time that is possible, and its run ids get an earlier time. Without the repair, the score
-- would look fresh until that time comes, and replace all later results.
-- KEYS  1 writes
-- ARGV  1 now, 2 upper bound of the run ids of now, 3 the time in the run ids to write instead of later ones,
--       4 seconds by which clocks may differ, 5... pair
-- Returns the number of pairs that had such times.
local now, latest_run, new_run_time, count = tonumber(ARGV[1]), ARGV[2], ARGV[3], 0
local latest = now + tonumber(ARGV[4])
local RUNS = {'state_run', 'last_run', 'score_run'}

local function shift_run(run)
    return new_run_time .. string.sub(run, 14)
end

for i = 5, #ARGV do
    local pair = ARGV[i]
    local hash, row = PAIR .. pair, parse_row(redis.call('HGET', ROWS, pair))
    local measured = tonumber(row.last_success)
    local is_repaired, has_score = false, false
    if measured and measured > latest then
        row.last_success = string.format('%.6f', now)
        row.valid_until = string.format('%.6f', (tonumber(row.valid_until) or 0) - measured + now)
        is_repaired = true
    end
    if row.expired_run and row.expired_run > latest_run then
        row.expired, row.expired_run, row.expired_at = nil, nil, nil
        is_repaired = true
    end
    local runs = redis.pcall('HMGET', hash, unpack(RUNS))
    for number, name in ipairs(runs.err and {} or RUNS) do
        local run = runs[number]
        if run and run > latest_run then
            redis.call('HSET', hash, name, shift_run(run))
            is_repaired, has_score = true, has_score or name == 'score_run'
        end
    end
    if has_score then
        -- Edit the score as text, because cjson would encode an empty list as an object.
        local score = redis.call('HGET', hash, 'score')
        if score then
            score = string.gsub(score, '"run":"%d+%-(%x+)"', '"run":"' .. new_run_time .. '-%1"', 1)
            if measured and measured > latest then
                score = string.gsub(score, '"at":[^,]+,"valid_until":[^,]+',
                    '"at":' .. row.last_success .. ',"valid_until":' .. row.valid_until, 1)
            end
            redis.call('HSET', hash, 'score', score)
        end
        -- Make the writer compare the object again, and the next result count as a change.
        redis.call('HDEL', hash, 'digest')
        redis.call('HINCRBY', KEYS[1], pair, 1)
    end
    if is_repaired then
        put_row(pair, row)
        count = count + 1
    end
end
publish_changes()
return count
