-- Functions that write the rows of pairs, and the change log for their readers. dsf.store.client prepends this file to
-- other scripts, after constants with the names of keys (dsf.keys): ROWS, CHANGED, SEQUENCE and PAIR.
local function decode_table(text)
    local is_json, value = pcall(cjson.decode, text or '')
    return is_json and type(value) == 'table' and value or {}
end

local changed_pairs = {}

-- Records that a pair has changed. `publish_changes`, called once at the end of a script, notifies readers.
local function note_change(pair)
    changed_pairs[#changed_pairs + 1] = pair
end

-- Publishes the changed pairs with increasing sequence numbers. The first number is the time, so that the numbers of an
-- emptied Redis exceed all earlier ones. `pcall` ignores errors, which must not end a script whose work is done.
local function publish_changes()
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
        local scores_and_pairs = {}
        for i = first, math.min(first + 999, count) do
            scores_and_pairs[#scores_and_pairs + 1] = string.format('%.0f', last - count + i)
            scores_and_pairs[#scores_and_pairs + 1] = changed_pairs[i]
        end
        redis.pcall('ZADD', CHANGED, unpack(scores_and_pairs))
    end
end

local NUMBER_FIELDS = {'last_success', 'valid_until', 'expired_at', 'failing', 'expired', 'items', 'value'}

-- Parses the text of a row into a table of texts, which dsf.store.pairs describes. A row with an invalid number counts
-- as missing, as for readers, and the next write replaces it.
local function parse_row(text)
    local row = decode_table(text)
    for _, name in ipairs(NUMBER_FIELDS) do
        local text = row[name]
        if text ~= nil then
            local number = tonumber(text)
            -- The upper bound of numbers is 9999-01-01 in unix seconds. Only a value may be larger.
            if not number or number ~= number or math.abs(number) > (name == 'value' and 1.7e308 or 253370764800) then
                return {}
            end
        end
    end
    return row
end

-- Stores a row, and notes that the pair has changed.
local function put_row(pair, row)
    redis.call('HSET', ROWS, pair, cjson.encode(row))
    note_change(pair)
end
