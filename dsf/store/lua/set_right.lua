-- Sets right what a clock that was ahead has left: a score from the future becomes one that was measured now, as it was at
-- the latest. Else it would look fresh, and be used, until that time comes.
-- KEYS  1 writes
-- ARGV  1 now, 2 seconds by which clocks may differ, 3... pair
-- Returns how many there were.
local now, count = tonumber(ARGV[1]), 0
-- By this worker's clock and that of Redis: of two that differ by more, one is wrong and nothing is changed.
local latest = math.max(now, tonumber(redis.call('TIME')[1])) + tonumber(ARGV[2])
for i = 3, #ARGV do
    local pair = ARGV[i]
    local row = row_of(redis.call('HGET', ROWS, pair))
    local measured = tonumber(row.last_success)
    if measured and measured > latest then
        row.last_success = string.format('%.6f', now)
        row.valid_until = string.format('%.6f', (tonumber(row.valid_until) or 0) - measured + now)
        put_row(pair, row)
        local score = redis.pcall('HGET', PAIR .. pair, 'score')
        if type(score) == 'string' then
            -- As text: decoded and encoded again, an empty list would become an object.
            redis.call('HSET', PAIR .. pair, 'score', (string.gsub(score, '"at":[^,]+,"valid_until":[^,]+',
                '"at":' .. row.last_success .. ',"valid_until":' .. row.valid_until, 1)))
        end
        redis.call('HINCRBY', KEYS[1], pair, 1)
        count = count + 1
    end
end
tell_readers()
return count
