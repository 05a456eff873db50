-- Records verified results in the counters, the state and the score of their pairs. Each pair appears at most once per
-- call, so that all reads are batched before any write. Each result is recorded completely or not at all, because all
-- conditions are checked before the first write. An error of one result does not affect the others.
-- The outcome 'lost' ends a run without a result, if the run is still open.
-- KEYS  1 open runs, 2 lost runs, 3 entries, 4 writes, 5 writes wake, 6 rejected, 7 hub changed, 8 hub wake, 9 bytes of
--       scores
-- ARGV  1 now, 2 history length, 3 prefix of histories, 4 number of consecutive expired runs that notifies the hub,
--       then a JSON object per result. Fields without a value are left out:
--       pair, scorer, run, outcome
--       refusal            reason to refuse the result. If its run is open, it ends with the error in `failure` instead
--       failure            JSON text, only for errors and lost runs
--       score, digest      JSON text of the score and digest of its object, only for successes
--       measured_at, valid_until  of the score, as texts
--       items, value       number of items of the score, and the number that represents it in charts, as a text
--       remark             JSON text: why results are missing in the score
--       row                row of the history
--       failure_threshold  number of consecutive failures after which another score is written; 0: never
--       is_written         true if the score becomes an object
--       counters           field -> number to add when the run ends
--       has_expired        true if the run expired in the agent's queue
--       namespace, room    namespace of the scorer, and the maximum bytes of its scores, of which one cluster may have
--                          half; 0: no limit
-- Returns for each result its outcome, 'late', 'replayed', 'stale', 'removed', 'ended', 'no_room' for a score that
-- exceeds the bytes of its namespace and is not written, or an error.
local FIRST = 5
-- Scores up to this size in bytes are stored even if their namespace has no room.
local SMALL_SCORE = 4096
local now, history_length, expired_threshold = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
-- Maximum value of a counter: the largest whole number that is exact in Lua.
local MAX_COUNTER = 2 ^ 53
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
local used_bytes, added_bytes, owners = {}, {}, {}

local function get_cluster_owner(namespace, pair)
    return namespace .. '/' .. match(pair, '^[^/]*')
end

for _, result in ipairs(results) do
    owners[#owners + 1], owners[#owners + 2] = result.namespace, get_cluster_owner(result.namespace, result.pair)
end
for i, bytes in ipairs(call('HMGET', KEYS[9], unpack(owners))) do
    used_bytes[owners[i]] = tonumber(bytes) or 0
end

-- Writes for all --------------------------------------------------------------------------------------------

local ended, new_lost_runs, new_rows, changed_scores, rejected, changed_scorers = {}, {}, {}, {}, {}, {}

local function add(list, ...)
    for _, value in ipairs({...}) do
        list[#list + 1] = value
    end
end

local function reject(reason, outcome)
    rejected[reason] = (rejected[reason] or 0) + 1
    return outcome or reason
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
    local is_late = not is_open and lost_runs[i]
    local names = {'state_run', 'last_run', 'score_run', 'digest', 'score_size', 'score_of'}
    local STATE_SIZE = #names
    local amounts = {}
    if not is_late then
        local has_many_fields
        for field, amount in pairs(result.counters) do
            -- Agents choose the last part of these names, so the number of fields with such names is limited.
            local group = sub(field, 1, 2) == 'n:' and (match(field, '^(n:skipped:)') or match(field, '^(n:refused:)')
                or match(field, '^(n:error:[^:]*:)'))
            if group then
                if has_many_fields == nil then
                    has_many_fields = call('HLEN', hash) >= 200
                end
                if has_many_fields and call('HEXISTS', hash, field) == 0 then
                    field = group .. 'other'
                end
            end
            names[#names + 1] = field
            amounts[#amounts + 1] = amount
        end
        if not is_open then
            -- The agent started this run itself, so the hub has not counted it.
            names[#names + 1], amounts[#amounts + 1] = 'n:scheduled', 1
        end
    end
    local state = call('HMGET', hash, unpack(names))
    local state_run, last_run, score_run = state[1] or '', state[2] or '', state[3] or ''
    local digest = state[4] or ''
    local pair_row = parse_row(rows[i])
    local failing, expired = tonumber(pair_row.failing) or 0, tonumber(pair_row.expired) or 0
    local has_expired = (tonumber(pair_row.valid_until) or 0) <= now

    if not is_open and result.refusal then
        return reject(result.refusal)
    end
    if not is_open and not is_late then
        if run <= state_run then
            return reject('replayed')
        end
        -- Search the history, too, because skipped runs are recorded only there.
        local head = sub(result.row, 1, 13)
        for _, row in ipairs(call('LRANGE', history, 0, -1)) do
            if sub(row, 1, #head) == head then
                return reject('replayed')
            end
        end
    end

    local size_before, owner_before = tonumber(state[5]) or 0, state[6] or ''
    if score and run > score_run and #score > SMALL_SCORE and result.room > 0 then
        local growth = #score - (owner_before == namespace and size_before or 0)
        -- A single cluster, whose credential may be stolen, must leave room for the others.
        local exceeds_room = used_bytes[namespace] + growth > result.room
            or used_bytes[get_cluster_owner(namespace, pair)] + growth > result.room / 2
        if growth > 0 and exceeds_room then
            return 'no_room'
        end
    end

    -- New state --------------------------------------------------------------------------------------------------

    local values, value_count = {}, 0
    local function set(field, value)
        values[value_count + 1], values[value_count + 2] = field, value
        value_count = value_count + 2
    end

    -- The sums are computed here, because HINCRBY ends the script if a sum is too large or not a number.
    local sums = {}
    for i, amount in ipairs(amounts) do
        local field = names[STATE_SIZE + i]
        local sum = (sums[field] or tonumber(state[STATE_SIZE + i]) or 0) + amount
        sums[field] = sum < MAX_COUNTER and sum or MAX_COUNTER
    end
    for field, sum in pairs(sums) do
        set(field, format(sub(field, -4) == ':sum' and '%.6f' or '%.0f', sum))
    end
    if run > last_run then
        set('last_run', run)
    end

    local notifies_hub, notifies_writer, has_row = false, false, false
    local failure_threshold = result.failure_threshold
    -- The late result of a lost run replaces the state that its loss caused, but no newer state.
    local is_newer = run > state_run or (is_late and run == state_run)

    if outcome == 'error' or is_lost then
        if is_newer then
            local old_failure, new_failure = decode_table(pair_row.failure), decode_table(result.failure)
            notifies_hub = failing == 0 or old_failure.stage ~= new_failure.stage
                or old_failure.reason ~= new_failure.reason
            if not is_late then
                failing = failing + 1
                notifies_writer = failure_threshold > 0 and failing == failure_threshold
            end
            set('state_run', run)
            pair_row.failing, pair_row.failure, has_row = tostring(failing), result.failure, true
        end
    elseif outcome ~= 'skipped' then
        if is_newer then
            notifies_hub = failing > 0
            notifies_writer = failure_threshold > 0 and failing >= failure_threshold
            set('state_run', run)
            pair_row.failing, pair_row.failure, has_row = '0', nil, true
        end
        if run > score_run then
            notifies_hub = notifies_hub or has_expired or (pair_row.items == '0') ~= (result.items == 0)
                or decode_table(pair_row.remark).reason ~= decode_table(result.remark).reason
            notifies_writer = notifies_writer or digest ~= result.digest or has_expired
                or tonumber(result.valid_until) < (tonumber(pair_row.valid_until) or 0)
            if (tonumber(pair_row.last_success) or 0) <= tonumber(result.measured_at) then
                pair_row.last_success = result.measured_at
            end
            pair_row.valid_until, pair_row.items = result.valid_until, tostring(result.items)
            pair_row.value, pair_row.remark = result.value, result.remark
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
            pair_row.expired, pair_row.expired_run, pair_row.expired_at = tostring(expired), run, ARGV[1]
            has_row = true
            notifies_hub = expired == expired_threshold
        end
    elseif outcome ~= 'skipped' and is_newer and expired > 0 then
        -- Any other cycle ends the series of expired runs.
        pair_row.expired, pair_row.expired_run, pair_row.expired_at = nil, nil, nil
        notifies_hub = notifies_hub or expired >= expired_threshold
    end
    notifies_writer = notifies_writer and result.is_written

    local new_row = has_row and cjson.encode(pair_row)

    -- Writes: the first one fails if the stored value is not a list, and all others were checked ----------------------

    if not is_late and call('LPUSH', history, result.row) > history_length then
        call('LTRIM', history, 0, history_length - 1)
    end
    if value_count > 0 then
        call('HSET', hash, unpack(values))
    end
    if score and run > score_run then
        for owner, bytes in pairs({[owner_before] = -size_before, [namespace] = #score
                - (owner_before == namespace and size_before or 0)}) do
            for _, part in ipairs({owner, get_cluster_owner(owner, pair)}) do
                used_bytes[part] = (used_bytes[part] or 0) + bytes
                added_bytes[part] = (added_bytes[part] or 0) + bytes
            end
        end
    end
    -- Count a refused result as rejected if its run ends with an error, but not if the run was skipped.
    if is_open and result.refusal and outcome == 'error' then
        reject(result.refusal)
    end
    if is_open or is_late then
        add(ended, member)
    end
    if is_lost then
        add(new_lost_runs, now, member)
    end
    if has_row then
        add(new_rows, pair, new_row)
        note_change(pair)
    end
    if notifies_writer then
        changed_scores[#changed_scores + 1] = pair
    end
    if notifies_hub then
        add(changed_scorers, result.scorer)
    end
    return is_late and 'late' or outcome
end

local outcomes = {}
for i, result in ipairs(results) do
    local is_ok, value = pcall(ingest, result, i)
    outcomes[i] = is_ok and value or {err = type(value) == 'table' and value.err or 'ERR ' .. tostring(value)}
end

for owner, bytes in pairs(added_bytes) do
    if bytes ~= 0 and redis.pcall('HINCRBY', KEYS[9], owner, bytes) == 0 then
        redis.pcall('HDEL', KEYS[9], owner)
    end
end
if #ended > 0 then
    call('ZREM', KEYS[1], unpack(ended))
    call('ZREM', KEYS[2], unpack(ended))
end
if #new_lost_runs > 0 then
    call('ZADD', KEYS[2], unpack(new_lost_runs))
end
if #new_rows > 0 then
    call('HSET', ROWS, unpack(new_rows))
end
-- The results are recorded. Use pcall from here on, because an error would cause them to be recorded again.
publish_changes()
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
if #changed_scorers > 0 then
    redis.pcall('SADD', KEYS[7], unpack(changed_scorers))
    redis.pcall('LPUSH', KEYS[8], '1')
    redis.pcall('LTRIM', KEYS[8], 0, 0)
end
return outcomes
