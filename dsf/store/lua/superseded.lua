-- Closes the books of runs whose results gave way to newer ones before the hub took them. Others stay as they are: the
-- result of such a run may have come all the same. For each all or nothing, as in ingest.lua.
-- KEYS  1 open runs, 2 entries
-- ARGV  1 history length, 2 prefix of pair hashes, 3 prefix of histories, 4 what sorts after every run id that can be
--       remembered, as in ingest.lua, then per run: pair, run, row of the history
-- Returns how many ended.
local FULL = 2 ^ 53
local length, ended = tonumber(ARGV[1]), 0
for i = 5, #ARGV, 3 do
    local pair, run, row = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local member, key, history = pair .. '/' .. run, ARGV[2] .. pair, ARGV[3] .. pair
    if redis.call('ZSCORE', KEYS[1], member) then
        if redis.call('HEXISTS', KEYS[2], pair) == 0 then
            redis.call('ZREM', KEYS[1], member)
        else
            local known = redis.pcall('HMGET', key, 'n:skipped:superseded', 'last_run')
            local last_run = known[2] and known[2] <= ARGV[4] and known[2] or ''
            if not known.err and type(redis.pcall('LLEN', history)) == 'number' then
                redis.call('ZREM', KEYS[1], member)
                redis.call('HSET', key, 'n:skipped:superseded',
                    string.format('%.0f', math.min((tonumber(known[1] or nil) or 0) + 1, FULL)),
                    'last_run', run > last_run and run or last_run)
                redis.call('LPUSH', history, row)
                redis.call('LTRIM', history, 0, length - 1)
                ended = ended + 1
            end
        end
    end
end
return ended
