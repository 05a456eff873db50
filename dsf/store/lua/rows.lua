-- The rows of pairs, and the change log for their readers. dsf.store.client prepends this file to other scripts, and
-- defines ROWS, CHANGED, SEQUENCE and PAIR, the names of keys (dsf.keys), before it.
local function decoded(text)
    local is_json, value = pcall(cjson.decode, text or '')
    return is_json and type(value) == 'table' and value or {}
end

local changed_pairs = {}

-- Notes that a pair has changed; `tell_readers`, once at the end of a script, publishes all changes.
local function note_change(pair)
    changed_pairs[#changed_pairs + 1] = pair
end

-- Numbers begin with the time, so that those of an emptied Redis are greater than all that were given before. An error
-- here must not end a script whose work is done: pcall.
local function tell_readers()
    local count = #changed_pairs
    if count == 0 then
        return
    end
    local last = redis.pcall('INCRBY', SEQUENCE, count)
    if type(last) ~= 'number' or last == count then
        local time = redis.call('TIME')
        last = tonumber(time[1]) * 1000000 + tonumber(time[2]) + count
        redis.call('SET', SEQUENCE, string.format('%.0f', last))
    end
    for first = 1, count, 1000 do
        local news = {}
        for i = first, math.min(first + 999, count) do
            news[#news + 1] = string.format('%.0f', last - count + i)
            news[#news + 1] = changed_pairs[i]
        end
        redis.pcall('ZADD', CHANGED, unpack(news))
    end
end

local NUMBERS = {'last_success', 'valid_until', 'expired_at', 'failing', 'expired', 'items', 'value'}

-- The row of a pair from its text: a table of texts, described in dsf.store.pairs. A row with an
-- invalid number is treated as missing, as by readers; the next write replaces it.
local function row_of(text)
    local row = decoded(text)
    for _, name in ipairs(NUMBERS) do
        local text = row[name]
        if text ~= nil then
            local number = tonumber(text)
            -- 9999-01-01 in unix seconds; no other number is as large, but a value may be.
            if not number or number ~= number or math.abs(number) > (name == 'value' and 1.7e308 or 253370764800) then
                return {}
            end
        end
    end
    return row
end

local function put_row(pair, row)
    redis.call('HSET', ROWS, pair, cjson.encode(row))
    note_change(pair)
end
