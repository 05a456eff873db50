-- Records verified results in the books, the state and the score of their pairs. Each pair appears at most once per call, so
-- all reads are batched before any write. Each result is recorded as a whole or not at all: whatever can fail is checked
-- before the first write, and an error for one result does not affect the others.
-- The outcome 'lost' closes a run without a result, only if the run is still open.
-- KEYS  1 open runs, 2 lost runs, 3 entries, 4 writes, 5 writes wake, 6 rejected, 7 hub changed, 8 hub wake, 9 bytes of scores
-- ARGV  1 now, 2 history length, 3 beginning of the names of histories, 4 number of consecutive runs that expired in
--       the queue that notifies the hub, then a JSON object per result; fields without a value are left out:
--       pair, scorer, run, outcome
--       refusal            why an open run ends as the error that follows and any other run is refused
--       failure            JSON text, errors and lost runs only
--       score, digest      successes only: the JSON text, and the digest of what would be written
--       measured_at, valid_until  of the score, texts
--       items, value       number of items of the score, and the one number (text) that stands for it
--       remark             JSON text: why the score has not all results
--       row                of the history
--       failure_threshold  failures in a row after which the written score changes; 0: never
--       is_written         true if an object is to be written
--       counters           field -> what is added to it when the run's books close
--       has_expired        true if the run expired in the queue
--       namespace, room    of the scorer, and the bytes that scores of that namespace may take; 0: any number. Those of
--                          one cluster may take half of it
-- Returns for each the outcome, 'late', 'replayed', 'stale', 'removed' or 'ended', or 'no_room' for a score that exceeds the
-- bytes of its namespace, with nothing written, or the error.
local FIRST = 5
-- A score of at most so many bytes always finds room.
local SMALL = 4096
local now, history_length, many_expired = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
-- The largest whole number that is exact as a Lua number; books that are full stay full.
local FULL = 2 ^ 53
local call, match, format, sub = redis.call, string.match, string.format, string.sub

-- Reads for all -----------------------------------------------------------------------------------------------------

local results, all_pairs, members = {}, {}, {}
for i = FIRST, #ARGV do
    local result = cjson.decode(ARGV[i])
    results[#results + 1] = result
    all_pairs[#all_pairs + 1], members[#members + 1] = result.pair, result.pair .. '/' .. result.run
end
local entries = call('HMGET', KEYS[3], unpack(all_pairs))
local open_runs = call('ZMSCORE', KEYS[1], unpack(members))
local lost_runs = call('ZMSCORE', KEYS[2], unpack(members))
local rows = call('HMGET', ROWS, unpack(all_pairs))
-- Bytes of scores by owner: a namespace, or `NAMESPACE/CLUSTER`.
local used, grown, owners = {}, {}, {}

local function part_of(namespace, pair)
    return namespace .. '/' .. match(pair, '^[^/]*')
end

for _, result in ipairs(results) do
    owners[#owners + 1], owners[#owners + 2] = result.namespace, part_of(result.namespace, result.pair)
end
for i, bytes in ipairs(call('HMGET', KEYS[9], unpack(owners))) do
    used[owners[i]] = tonumber(bytes) or 0
end

-- Writes for all --------------------------------------------------------------------------------------------

local ended, lost_now, rows_now, changed_scores, rejected, news_of = {}, {}, {}, {}, {}, {}

local function add(list, ...)
    for _, value in ipairs({...}) do
        list[#list + 1] = value
    end
end

local function reject(reason, answer)
    rejected[reason] = (rejected[reason] or 0) + 1
    return answer or reason
end

local function ingest(result, i)
    local pair, run, outcome, score, namespace = result.pair, result.run, result.outcome, result.score, result.namespace
    local member, hash, history = members[i], PAIR .. pair, ARGV[3] .. pair

    local is_lost = outcome == 'lost'
    if not entries[i] then
        add(ended, member)
        return is_lost and 'removed' or reject('stale', 'removed')
    end
    if is_lost and not open_runs[i] then
        return 'ended'
    end

    -- Current state --------------------------------------------------------------------------------------------------

    local is_open = open_runs[i]
    local late = not is_open and lost_runs[i]
    local names = {'state_run', 'last_run', 'score_run', 'digest', 'score_size', 'score_of'}
    local STATE = #names
    local amounts = {}
    if not late then
        local is_long
        for field, amount in pairs(result.counters) do
            -- Words in these names come from agents: a bounded number of them is kept apart.
            local group = sub(field, 1, 2) == 'n:' and (match(field, '^(n:skipped:)') or match(field, '^(n:refused:)')
                or match(field, '^(n:error:[^:]*:)'))
            if group then
                if is_long == nil then
                    is_long = call('HLEN', hash) >= 200
                end
                if is_long and call('HEXISTS', hash, field) == 0 then
                    field = group .. 'other'
                end
            end
            names[#names + 1] = field
            amounts[#amounts + 1] = amount
        end
        if not is_open then
            -- The run was started on the agent itself: the hub had not scheduled it.
            names[#names + 1], amounts[#amounts + 1] = 'n:scheduled', 1
        end
    end
    local state = call('HMGET', hash, unpack(names))
    local state_run, last_run, score_run = state[1] or '', state[2] or '', state[3] or ''
    local digest = state[4] or ''
    local facts = row_of(rows[i])
    local failing, expired = tonumber(facts.failing) or 0, tonumber(facts.expired) or 0
    local is_over = (tonumber(facts.valid_until) or 0) <= now

    if not is_open and result.refusal then
        return reject(result.refusal)
    end
    if not is_open and not late then
        if run <= state_run then
            return reject('replayed')
        end
        -- A skipped run leaves no state; only the history knows it.
        local head = sub(result.row, 1, 13)
        for _, row in ipairs(call('LRANGE', history, 0, -1)) do
            if sub(row, 1, #head) == head then
                return reject('replayed')
            end
        end
    end

    local size_before, owner_before = tonumber(state[5]) or 0, state[6] or ''
    if score and run > score_run and #score > SMALL and result.room > 0 then
        local growth = #score - (owner_before == namespace and size_before or 0)
        -- One cluster, whose credential may be stolen, leaves room for the others.
        local is_over = used[namespace] + growth > result.room
            or used[part_of(namespace, pair)] + growth > result.room / 2
        if growth > 0 and is_over then
            return 'no_room'
        end
    end

    -- New state --------------------------------------------------------------------------------------------------

    local values, last = {}, 0
    local function set(field, value)
        values[last + 1], values[last + 2] = field, value
        last = last + 2
    end

    -- The sums are computed here and not by HINCRBY, which ends the script when a sum is too large or no number.
    local sums = {}
    for i, amount in ipairs(amounts) do
        local field = names[STATE + i]
        local sum = (sums[field] or tonumber(state[STATE + i]) or 0) + amount
        sums[field] = sum < FULL and sum or FULL
    end
    for field, sum in pairs(sums) do
        set(field, format(sub(field, -4) == ':sum' and '%.6f' or '%.0f', sum))
    end
    if run > last_run then
        set('last_run', run)
    end

    local news, changed, has_row = false, false, false
    local limit = result.failure_threshold
    -- The late result of a lost run may replace the state that its loss made, but no newer one.
    local newer = run > state_run or (late and run == state_run)

    if outcome == 'error' or is_lost then
        if newer then
            local old, fresh = decoded(facts.failure), decoded(result.failure)
            news = failing == 0 or old.stage ~= fresh.stage or old.reason ~= fresh.reason
            if not late then
                failing = failing + 1
                changed = limit > 0 and failing == limit
            end
            set('state_run', run)
            facts.failing, facts.failure, has_row = tostring(failing), result.failure, true
        end
    elseif outcome ~= 'skipped' then
        if newer then
            news = failing > 0
            changed = limit > 0 and failing >= limit
            set('state_run', run)
            facts.failing, facts.failure, has_row = '0', nil, true
        end
        if run > score_run then
            news = news or is_over or (facts.items == '0') ~= (result.items == 0)
                or decoded(facts.remark).reason ~= decoded(result.remark).reason
            changed = changed or digest ~= result.digest or is_over
                or tonumber(result.valid_until) < (tonumber(facts.valid_until) or 0)
            if (tonumber(facts.last_success) or 0) <= tonumber(result.measured_at) then
                facts.last_success = result.measured_at
            end
            facts.valid_until, facts.items = result.valid_until, tostring(result.items)
            facts.value, facts.remark = result.value, result.remark
            has_row = true
            set('score', score)
            set('score_size', #score)
            set('score_of', namespace)
            set('score_run', run)
            set('digest', result.digest)
        end
    end
    if result.has_expired then
        if run > state_run then
            expired = expired + 1
            facts.expired, facts.expired_run, facts.expired_at = tostring(expired), run, ARGV[1]
            has_row = true
            news = expired == many_expired
        end
    elseif outcome ~= 'skipped' and newer and expired > 0 then
        -- Any cycle that ran ends the series of expired runs.
        facts.expired, facts.expired_run, facts.expired_at = nil, nil, nil
        news = news or expired >= many_expired
    end
    changed = changed and result.is_written

    local row_now = has_row and cjson.encode(facts)

    -- The first write fails if the stored value is no list; all others were checked --------------------------------

    if not late and call('LPUSH', history, result.row) > history_length then
        call('LTRIM', history, 0, history_length - 1)
    end
    if last > 0 then
        call('HSET', hash, unpack(values))
    end
    if score and run > score_run then
        for owner, bytes in pairs({[owner_before] = -size_before, [namespace] = #score
                - (owner_before == namespace and size_before or 0)}) do
            for _, part in ipairs({owner, part_of(owner, pair)}) do
                used[part] = (used[part] or 0) + bytes
                grown[part] = (grown[part] or 0) + bytes
            end
        end
    end
    -- A run that ends as an error by refusal is counted as rejected; a skipped run is not.
    if is_open and result.refusal and outcome == 'error' then
        reject(result.refusal)
    end
    if is_open or late then
        add(ended, member)
    end
    if is_lost then
        add(lost_now, now, member)
    end
    if has_row then
        add(rows_now, pair, row_now)
        note_change(pair)
    end
    if changed then
        changed_scores[#changed_scores + 1] = pair
    end
    if news then
        add(news_of, result.scorer)
    end
    return late and 'late' or outcome
end

local answers = {}
for i, result in ipairs(results) do
    local fine, answer = pcall(ingest, result, i)
    answers[i] = fine and answer or {err = type(answer) == 'table' and answer.err or 'ERR ' .. tostring(answer)}
end

for owner, bytes in pairs(grown) do
    if bytes ~= 0 and redis.pcall('HINCRBY', KEYS[9], owner, bytes) == 0 then
        redis.pcall('HDEL', KEYS[9], owner)
    end
end
if #ended > 0 then
    call('ZREM', KEYS[1], unpack(ended))
    call('ZREM', KEYS[2], unpack(ended))
end
if #lost_now > 0 then
    call('ZADD', KEYS[2], unpack(lost_now))
end
if #rows_now > 0 then
    call('HSET', ROWS, unpack(rows_now))
end
-- The results are in the books: an error from here on must not have them recorded again.
tell_readers()
for _, pair in ipairs(changed_scores) do
    redis.pcall('HINCRBY', KEYS[4], pair, 1)
end
if #changed_scores > 0 then
    redis.pcall('LPUSH', KEYS[5], '1')
    redis.pcall('LTRIM', KEYS[5], 0, 0)
end
for reason, number in pairs(rejected) do
    redis.pcall('HINCRBY', KEYS[6], reason, number)
end
if #news_of > 0 then
    redis.pcall('SADD', KEYS[7], unpack(news_of))
    redis.pcall('LPUSH', KEYS[8], '1')
    redis.pcall('LTRIM', KEYS[8], 0, 0)
end
return answers
