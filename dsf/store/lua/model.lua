-- The read model: how every pair does, indexed for readers, who so never read all pairs. Other scripts begin with this
-- file; dsf.store.client puts MODEL and PAIR, the beginnings of the names of its keys and of pair hashes, before it.
-- The keys are described in dsf.keys, the states in dsf.fleet.verdict, of which this says the same.
local MODEL_RANK = {failing = 0, expired = 1, skipped = 2, never = 3, paused = 4, empty = 5, ok = 6}
-- A place in an index is rank * SPAN + a time (unix seconds), so the worst comes first.
local MODEL_SPAN = 1e10
-- What a pair adds to how bad its cluster is, by rank.
local MODEL_WEIGHT = {[0] = 1e8, [1] = 1e4, [2] = 1e4, [3] = 1, [4] = 0, [5] = 0, [6] = 0}
local MODEL_SKIPS, MODEL_EXPIRED = 3, 3
local MODEL_REASONS = {'queue_full', 'rate_limit', 'paused', 'results_behind', 'inactive', 'expired'}
local MODEL_REASON = {}
for i, reason in ipairs(MODEL_REASONS) do
    MODEL_REASON[reason] = i
end
-- Seconds for which a pair that went is in the index of changes.
local MODEL_GONE = 3600

local function model_decoded(text)
    local fine, value = pcall(cjson.decode, text or '')
    return fine and type(value) == 'table' and value or {}
end

local function model_text(value)
    return type(value) == 'string' and value or ''
end

-- Asks for a look at a pair, or at all pairs of a scorer (`*/<scorer>`); the sweeper comes by every second.
local function model_mark(target)
    redis.call('HINCRBY', MODEL .. 'marked', target, 1)
end

local function model_split(pair)
    return string.match(pair, '^([^/]*)/(.*)$')
end

local function model_weigh(cluster, weight)
    if weight ~= 0 then
        local key = MODEL .. 'clusters'
        if tonumber(redis.call('ZINCRBY', key, weight, cluster)) <= 0 then
            redis.call('ZREM', key, cluster)
        end
    end
end

local function model_changed(pair)
    redis.call('ZADD', MODEL .. 'changed', redis.call('INCR', MODEL .. 'sequence'), pair)
end

local function model_leave_group(cluster, scorer)
    local pair = cluster .. '/' .. scorer
    local group = redis.call('HGET', MODEL .. 'grouped', pair)
    if group then
        local key = MODEL .. 'group:' .. scorer .. '/' .. group
        redis.call('HDEL', MODEL .. 'grouped', pair)
        redis.call('ZREM', key, cluster)
        if redis.call('EXISTS', key) == 0 then
            redis.call('HDEL', MODEL .. 'groups:' .. scorer, group)
        end
    end
end

-- Takes a pair out of all indexes.
local function model_drop(cluster, scorer, now)
    local old = redis.call('ZSCORE', MODEL .. 'states:' .. scorer, cluster)
    if old then
        local pair = cluster .. '/' .. scorer
        redis.call('ZREM', MODEL .. 'states:' .. scorer, cluster)
        redis.call('ZREM', MODEL .. 'ages:' .. scorer, cluster)
        redis.call('ZREM', MODEL .. 'values:' .. scorer, cluster)
        model_leave_group(cluster, scorer)
        model_weigh(cluster, -MODEL_WEIGHT[math.floor(tonumber(old) / MODEL_SPAN)])
        if redis.call('EXISTS', MODEL .. 'states:' .. scorer) == 0 then
            redis.call('SREM', MODEL .. 'scorers', scorer)
        end
        model_changed(pair)
        redis.call('ZADD', MODEL .. 'gone', now, pair)
        local over = redis.call('ZRANGEBYSCORE', MODEL .. 'gone', '-inf', now - MODEL_GONE, 'LIMIT', 0, 100)
        for _, one in ipairs(over) do
            redis.call('ZREM', MODEL .. 'gone', one)
            redis.call('ZREM', MODEL .. 'changed', one)
        end
    end
end

-- Puts a pair where it belongs at `now`, by what its hash says.
-- is_paused and until (unix seconds or nil): whether it shall run; is_paused nil: as it was.
-- touched: readers want to hear of it although its state may be the same.
-- f: what its hash says, if the caller knows; the last one is whether it had a remark before.
-- Returns its state.
local function model_place(cluster, scorer, now, is_paused, until_, touched, f)
    local pair = cluster .. '/' .. scorer
    f = f or redis.call('HMGET', PAIR .. pair, 'failing', 'expired', 'last_success', 'valid_until', 'items', 'skips',
        'value', 'failure', 'remark')
    if f[10] == nil then
        f[10] = true
    end
    local index = MODEL .. 'states:' .. scorer
    local old = tonumber(redis.call('ZSCORE', index, cluster) or nil)
    local old_rank = old and math.floor(old / MODEL_SPAN)
    if is_paused == nil then
        is_paused = old_rank == MODEL_RANK.paused
        until_ = is_paused and old - old_rank * MODEL_SPAN or nil
    end
    local last_success, skips = tonumber(f[3] or nil), tonumber(f[6] or nil) or 0
    -- Why it gets no ticks, where that is so.
    local skip_at, skip_for, since = -1, '', 0
    if skips >= MODEL_SKIPS then
        local s = redis.call('HMGET', PAIR .. pair, 'skips_since', 'skip_at:queue_full', 'skip_at:rate_limit',
            'skip_at:paused', 'skip_at:results_behind', 'skip_at:inactive', 'skip_at:expired')
        since = tonumber(s[1] or nil) or 0
        for i, one in ipairs(MODEL_REASONS) do
            local seconds = tonumber(s[i + 1] or nil)
            if seconds and seconds > skip_at then
                skip_at, skip_for = seconds, one
            end
        end
    end
    local state, within, group, newest
    if is_paused then
        state, within = 'paused', until_ or MODEL_SPAN
    elseif (tonumber(f[2] or nil) or 0) >= MODEL_EXPIRED then
        state, within, group = 'failing', last_success or 0, 'failing::expired'
        local e = redis.call('HMGET', PAIR .. pair, 'expired_run', 'expired_at')
        newest = {cluster = cluster, run = e[1] or '', at = tonumber(e[2] or nil) or 0, message = ''}
    elseif (tonumber(f[1] or nil) or 0) > 0 then
        local failure = model_decoded(f[8])
        state, within = 'failing', last_success or 0
        group = 'failing:' .. model_text(failure.stage) .. ':' .. model_text(failure.reason)
        newest = {cluster = cluster, run = model_text(failure.run), at = tonumber(failure.at) or 0,
            message = model_text(failure.message)}
    elseif skip_at >= 0 then
        state, within, group = 'skipped', since, 'skipped::' .. skip_for
        newest = {cluster = cluster, run = '', at = skip_at, message = ''}
    elseif not last_success then
        state, within = 'never', 0
    else
        within = tonumber(f[4] or nil) or 0
        state = within <= now and 'expired' or f[5] == '0' and 'empty' or 'ok'
        if f[9] and state ~= 'expired' then
            local remark = model_decoded(f[9])
            group = state .. '::' .. model_text(remark.reason)
            newest = {cluster = cluster, run = model_text(remark.run), at = tonumber(remark.at) or 0,
                message = model_text(remark.message)}
        end
    end
    local rank = MODEL_RANK[state]
    within = math.max(0, math.min(within, MODEL_SPAN - 1))
    local place = string.format('%.6f', rank * MODEL_SPAN + within)

    if old ~= tonumber(place) then
        redis.call('ZADD', index, place, cluster)
    end
    if last_success then
        redis.call('ZADD', MODEL .. 'ages:' .. scorer, f[3], cluster)
    elseif old then
        -- It went and came back before anybody looked.
        redis.call('ZREM', MODEL .. 'ages:' .. scorer, cluster)
    end
    if not old then
        redis.call('SADD', MODEL .. 'scorers', scorer)
        redis.call('ZREM', MODEL .. 'gone', pair)
    end
    if old_rank ~= rank then
        model_weigh(cluster, MODEL_WEIGHT[rank] - (old_rank and MODEL_WEIGHT[old_rank] or 0))
        touched = true
    end
    if group or f[10] or old_rank == MODEL_RANK.failing or old_rank == MODEL_RANK.skipped then
        local was = redis.call('HGET', MODEL .. 'grouped', pair)
        if group ~= (was or nil) then
            model_leave_group(cluster, scorer)
            touched = true
        end
        if group then
            redis.call('HSET', MODEL .. 'grouped', pair, group)
            redis.call('ZADD', MODEL .. 'group:' .. scorer .. '/' .. group, place, cluster)
            redis.call('HSET', MODEL .. 'groups:' .. scorer, group, cjson.encode(newest))
        end
    end
    if touched then
        local value = state == 'ok' and tonumber(f[7] or nil)
        if value then
            redis.call('ZADD', MODEL .. 'values:' .. scorer, f[7], cluster)
        elseif old_rank == MODEL_RANK.ok then
            redis.call('ZREM', MODEL .. 'values:' .. scorer, cluster)
        end
        model_changed(pair)
    end
    return state
end
