-- Takes one verified result into the books, the state and the score of its pair. All or nothing: whatever can fail is
-- looked at before the first write.
-- KEYS  1 pair hash, 2 history, 3 open runs, 4 lost runs, 5 entries, 6 writes, 7 written, 8 rejected,
--       9 hub changed, 10 hub wake
-- ARGV  1 pair, 2 scorer, 3 run, 4 now, 5 outcome, 6 refusal ('' or the reason for which an open run ends as the
--       error below and any other run is refused), 7 failure (JSON, errors only), 8 score (JSON, successes only),
--       9 digest of what would be written, 10 when it was measured, 11 until when it is valid, 12 row of the history,
--       13 history length, 14 failures in a row after which the written score changes (0: never),
--       15 '1' when an object is to be written, 16 what to add to counters when the run's books close, as `field amount ...`,
--       17 '1' when the run expired in the queue, 18 so many of these in a row are news, 19 number of items of the score,
--       20 the one number that stands for the score, '' for none
-- Returns {the outcome, 'late', 'replayed', 'stale' or 'removed'; 1 when a writer has to look at the pair now}.
local pair, scorer, run, now, outcome, refusal = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local member = pair .. '/' .. run
-- The largest whole number that is exact as a Lua number; books that are full stay full.
local FULL = 2 ^ 53

local function reject(reason, answer)
    redis.call('HINCRBY', KEYS[8], reason, 1)
    return {answer or reason, 0}
end

local function decoded(text)
    local fine, value = pcall(cjson.decode, text)
    return fine and type(value) == 'table' and value or {}
end

if redis.call('HEXISTS', KEYS[5], pair) == 0 then
    redis.call('ZREM', KEYS[3], member)
    redis.call('ZREM', KEYS[4], member)
    return reject('stale', 'removed')
end

-- What is known ------------------------------------------------------------------------------------------------------

local state = redis.call('HMGET', KEYS[1], 'state_run', 'last_run', 'score_run', 'failing', 'failure', 'digest',
    'valid_until', 'last_success', 'expired', 'changes', 'items')
local state_run, last_run, score_run = state[1] or '', state[2] or '', state[3] or ''
local failing, failure, digest = tonumber(state[4]) or 0, state[5], state[6] or ''
local valid_until, expired = tonumber(state[7]) or 0, tonumber(state[9]) or 0
local is_open = redis.call('ZSCORE', KEYS[3], member)
local late = not is_open and redis.call('ZSCORE', KEYS[4], member)
local has_look = redis.call('ZSCORE', KEYS[6], pair)
local is_shown = ARGV[15] == '1' or redis.call('HEXISTS', KEYS[7], pair) == 1
local known = redis.call('LLEN', KEYS[2])
local old = failure and decoded(failure) or {}
local fresh = outcome == 'error' and decoded(ARGV[7]) or {}

if not is_open and refusal ~= '' then
    return reject(refusal)
end
local fields, amounts = {}, {}
if not is_open and not late then
    if run <= state_run then
        return reject('replayed')
    end
    -- A skipped run leaves no state; only the history knows it.
    local head = string.match(ARGV[12], '^%S+ ')
    -- As earlier versions wrote it, and the sweeper does.
    local needle = '"run":"' .. run .. '"'
    for _, row in ipairs(known > 0 and redis.call('LRANGE', KEYS[2], 0, -1) or {}) do
        if string.sub(row, 1, #head) == head or string.find(row, needle, 1, true) then
            return reject('replayed')
        end
    end
    -- Asked for on the agent itself: nobody on the hub had scheduled it.
    fields[1], amounts[1] = 'n:scheduled', 1
end

-- What becomes of it -------------------------------------------------------------------------------------------------

local values = {}
local function set(field, value)
    values[#values + 1] = field
    values[#values + 1] = value
end

if not late then
    local is_long
    -- One argument: packing many costs the worker more than taking one apart here.
    for field, amount in string.gmatch(ARGV[16], '(%S+) (%S+)') do
        -- Words in these names come from agents: a bounded number of them is kept apart.
        local group = string.match(field, '^(n:skipped:)') or string.match(field, '^(n:refused:)')
            or string.match(field, '^(n:error:[^:]*:)')
        if group then
            if is_long == nil then
                is_long = redis.call('HLEN', KEYS[1]) >= 200
            end
            if is_long and redis.call('HEXISTS', KEYS[1], field) == 0 then
                field = group .. 'other'
            end
        end
        fields[#fields + 1] = field
        amounts[#amounts + 1] = tonumber(amount)
    end
    if #fields > 0 then
        -- Added here and not by HINCRBY, which ends the script when a sum is too large or no number.
        local sums = {}
        for i, number in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
            local field = fields[i]
            local sum = (sums[field] or tonumber(number) or 0) + amounts[i]
            sums[field] = sum < FULL and sum or FULL
        end
        for field, sum in pairs(sums) do
            set(field, string.format(string.sub(field, -4) == ':sum' and '%.6f' or '%.0f', sum))
        end
    end
end
if run > last_run then
    set('last_run', run)
end

local gone = {}
local news, changed, touched = false, false, false
local threshold = tonumber(ARGV[14])
-- The late result of a lost run may replace the state that its loss made, but no newer one.
local newer = run > state_run or (late and run == state_run)

if outcome == 'error' then
    if newer then
        news = failing == 0 or old.stage ~= fresh.stage or old.reason ~= fresh.reason
        if not late then
            failing = failing + 1
            changed = threshold > 0 and failing == threshold
        end
        set('state_run', run)
        set('failing', failing)
        set('failure', ARGV[7])
    end
elseif outcome ~= 'skipped' then
    if newer then
        news = failing > 0
        changed = threshold > 0 and failing >= threshold
        set('state_run', run)
        set('failing', 0)
        gone[#gone + 1] = 'failure'
    end
    if run > score_run then
        news = news or valid_until <= now or (state[11] == '0') ~= (ARGV[19] == '0')
        changed = changed or valid_until <= now or digest ~= ARGV[9]
        local last_success = ARGV[10]
        if (tonumber(state[8]) or 0) > tonumber(last_success) then
            last_success = state[8]
        end
        set('score', ARGV[8])
        set('score_run', run)
        set('digest', ARGV[9])
        set('valid_until', ARGV[11])
        set('items', ARGV[19])
        set('value', ARGV[20])
        touched = digest ~= ARGV[9] or valid_until <= now
        set('last_success', last_success)
    end
    -- Without a look to come nobody would renew it.
    changed = changed or (ARGV[15] == '1' and not has_look)
end
if ARGV[17] == '1' then
    if run > state_run then
        set('expired', expired + 1)
        set('expired_run', run)
        set('expired_at', ARGV[4])
        news = expired + 1 == tonumber(ARGV[18])
    end
elseif outcome ~= 'skipped' and newer and expired > 0 then
    -- A cycle that ran, well or not, says more.
    gone[#gone + 1] = 'expired'
    gone[#gone + 1] = 'expired_run'
    gone[#gone + 1] = 'expired_at'
    news = news or expired >= tonumber(ARGV[18])
end
changed = changed and is_shown
if changed then
    set('changes', string.format('%.0f', (tonumber(state[10]) or 0) + 1))
end

-- From here on nothing can fail --------------------------------------------------------------------------------------

if is_open then
    redis.call('ZREM', KEYS[3], member)
    -- A run that was skipped ends as it should.
    if refusal ~= '' and outcome == 'error' then
        reject(refusal)
    end
elseif late then
    redis.call('ZREM', KEYS[4], member)
end
if #values > 0 then
    redis.call('HSET', KEYS[1], unpack(values))
end
if #gone > 0 then
    redis.call('HDEL', KEYS[1], unpack(gone))
end
if not late then
    redis.call('LPUSH', KEYS[2], ARGV[12])
    redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[13]) - 1)
end
if outcome ~= 'skipped' or ARGV[17] == '1' then
    local cluster = model_split(pair)
    model_place(cluster, scorer, now, nil, nil, touched)
end
if changed then
    -- LT: a pair that already waits keeps its place.
    redis.call('ZADD', KEYS[6], 'LT', now, pair)
end
if news then
    redis.call('SADD', KEYS[9], scorer)
    redis.call('LPUSH', KEYS[10], '1')
    redis.call('LTRIM', KEYS[10], 0, 0)
end
return {late and 'late' or outcome, changed and 1 or 0}
