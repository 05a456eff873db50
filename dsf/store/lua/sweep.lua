-- Declares open runs lost, once no result waits in their cluster's mailbox; or, should that never be empty, those that
-- are long overdue.
-- KEYS  1 open runs, 2 lost runs, 3 entries, 4 scorers, 5 writes, 6 hub changed, 7 hub wake
-- ARGV  1 now, 2 seconds after the deadline, 3 most runs per call, 4 history length, 5 prefix of pair hashes,
--       6 prefix of histories, 7 seconds for which lost runs are remembered, 8 prefix of mailboxes, 9 number of slots,
--       10 what sorts after every run id that can be remembered, as in ingest.lua
-- Returns {runs overdue, pair/run of each lost run, ...}.
local now = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[7]))
local overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]), 'LIMIT', 0, tonumber(ARGV[3]))
if #overdue == 0 then
    return {0}
end

-- What waits may be the missing result; but not for ever, should somebody keep putting things there.
local patience = now - tonumber(ARGV[2]) - 60
local has_mail = {}
local function remembered(run)
    return run and run <= ARGV[10] and run or ''
end
local function mail(cluster)
    if cluster and has_mail[cluster] == nil then
        local slots = {}
        for slot = 0, tonumber(ARGV[9]) - 1 do
            slots[slot + 1] = ARGV[8] .. cluster .. '.' .. slot
        end
        has_mail[cluster] = redis.call('EXISTS', unpack(slots)) > 0
    end
    return cluster and has_mail[cluster]
end

local lost = {#overdue}
local news = false

local function lose(member, pair, run)
    local cluster, scorer = string.match(pair, '^([^/]*)/(.*)$')
    local key = ARGV[5] .. pair
    local message = 'sent to the queue of ' .. cluster .. ' and nothing was heard of it in time; check that the agent'
        .. ' of ' .. cluster .. ' runs and reaches Redis, and what its log says of run ' .. run
    local at = tonumber(string.sub(run, 1, 13)) / 1000
    redis.call('ZADD', KEYS[2], now, member)
    redis.call('HINCRBY', key, 'n:lost', 1)
    redis.call('LPUSH', ARGV[6] .. pair,
        cjson.encode({run = run, at = at, outcome = 'lost', reason = 'lost', message = message}))
    redis.call('LTRIM', ARGV[6] .. pair, 0, tonumber(ARGV[4]) - 1)

    local state = redis.call('HMGET', key, 'state_run', 'last_run')
    if run > remembered(state[2]) then
        redis.call('HSET', key, 'last_run', run)
    end
    -- When a newer run has been heard of, this one only closes its books.
    if run > remembered(state[1]) then
        local row = row_of(redis.call('HGET', ROWS, pair))
        local failing = (tonumber(row.failing) or 0) + 1
        local old = decoded(row.failure)
        redis.call('HSET', key, 'state_run', run)
        row.failing, row.failure = tostring(failing),
            cjson.encode({run = run, stage = '', reason = 'lost', message = message, at = now})
        -- Of cycles that expired the agent told at least.
        row.expired, row.expired_run, row.expired_at = nil, nil, nil
        put_row(pair, row)
        if failing == 1 or old.reason ~= 'lost' then
            redis.call('SADD', KEYS[6], scorer)
            news = true
        end
        local record = redis.call('HGET', KEYS[4], scorer)
        local policy = decoded(record or '').when_failing
        if type(policy) == 'table' and policy.behavior ~= 'Keep' and failing == policy.failure_threshold then
            redis.call('HINCRBY', key, 'changes', 1)
            redis.call('ZADD', KEYS[5], 'LT', now, pair)
        end
    end
end

for _, member in ipairs(overdue) do
    local pair, run = string.match(member, '^(.*)/([^/]*)$')
    local is_awaited = mail(string.match(member, '^([^/]*)/'))
        and tonumber(redis.call('ZSCORE', KEYS[1], member)) > patience
    if not is_awaited then
        redis.call('ZREM', KEYS[1], member)
    end
    if pair and not is_awaited and redis.call('HEXISTS', KEYS[3], pair) == 1 then
        -- A pair whose data is spoilt has no books to close, and must not stop the others.
        pcall(lose, member, pair, run)
        table.insert(lost, member)
    end
end
tell_readers()
if news then
    redis.call('LPUSH', KEYS[7], '1')
    redis.call('LTRIM', KEYS[7], 0, 0)
end
return lost
