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

-- The row of a pair: a table of texts, described in dsf.store.pairs.
local function row_of(pair)
    return decoded(redis.call('HGET', ROWS, pair))
end

local function put_row(pair, row)
    redis.call('HSET', ROWS, pair, cjson.encode(row))
    tell_readers(pair)
end
