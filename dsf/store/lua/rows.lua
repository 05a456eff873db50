-- The rows of pairs, and what tells readers which of them changed. Other scripts begin with this file; dsf.store.client
-- puts ROWS, CHANGED, SEQUENCE and PAIR, the names of keys (dsf.keys), before it.
local function decoded(text)
    local is_json, value = pcall(cjson.decode, text or '')
    return is_json and type(value) == 'table' and value or {}
end

-- Tells readers that a pair is not as it was. Numbers begin with the time, so that those of an emptied Redis are greater
-- than all that were given before.
local function tell_readers(pair)
    local number = redis.call('INCR', SEQUENCE)
    if number == 1 then
        local time = redis.call('TIME')
        number = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
        redis.call('SET', SEQUENCE, number)
    end
    redis.call('ZADD', CHANGED, number, pair)
end

local NUMBERS = {'last_success', 'valid_until', 'expired_at', 'failing', 'expired', 'items', 'value'}

-- The row of a pair: a table of texts, described in dsf.store.pairs. One with a number that is none is as if there were
-- no row, as for readers: what is written next puts it right.
local function row_of(pair)
    local row = decoded(redis.call('HGET', ROWS, pair))
    for _, name in ipairs(NUMBERS) do
        local text = row[name]
        if text ~= nil and not (name == 'value' and text == '') then
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
    tell_readers(pair)
end
