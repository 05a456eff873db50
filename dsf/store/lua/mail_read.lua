-- Reads results that wait in mailboxes, one of each cluster in turn, and claims these mailboxes for the reader. In each
-- mailbox reading continues after the last read slot, so that every scorer gets a turn when the hub is behind.
-- Slots that a reader was reading when it died are suspects. Each is read alone. If that reader dies, too, the slot is
-- dropped.
-- KEYS  1 clusters, 2 claims, 3 refused results by reason, 4 refused results by cluster, 5 slots that are being read by
--       reader, 6 suspects
-- ARGV  1 prefix of slots and flags, 2 number of slots, 3 token of the reader, 4 milliseconds for which a claim holds,
--       5 maximum results, 6 maximum bytes, 7 minimum and 8 maximum bytes of a result, 9 number of the cluster to
--       begin with, 10 '1' to read every mailbox, else only mailboxes with a flag, 11 maximum bytes of a cluster beyond
--       its first result, 12 '1' to read a suspect, if there is one
-- Returns {number of the cluster to begin with next time; 1 if more is waiting; slots; results; suspects dropped}.
local prefix, number, token, hold = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local most, most_bytes, shortest, longest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local is_everywhere, share, is_for_suspects = ARGV[10] == '1', tonumber(ARGV[11]), ARGV[12] == '1'
local call = redis.call
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Maximum names in one command, because a function of Lua takes at most 8,000 arguments.
local MANY = 1000

local function in_parts(names, run)
    for first = 1, #names, MANY do
        run(unpack(names, first, math.min(first + MANY - 1, #names)))
    end
end

-- Suspects ----------------------------------------------------------------------------------------------------------

-- A claim that ends later than now plus the claim time was written by a fast clock. It counts as expired.
local function is_over(ends)
    return tonumber(ends) <= now or tonumber(ends) > now + hold
end

local function pairs_of(key)
    local fields, values = call('HGETALL', key), {}
    for i = 1, #fields, 2 do
        values[fields[i]] = fields[i + 1]
    end
    return values
end

local function cluster_of(slot)
    return string.match(slot, '^(.*)%.%d+$', #prefix + 1)
end

for reader, reading in pairs(pairs_of(KEYS[5])) do
    if reader ~= token and is_over(string.match(reading, '^%d+')) then
        for slot in string.gmatch(reading, ' (%S+)') do
            call('HINCRBY', KEYS[6], slot, 1)
        end
        call('HDEL', KEYS[5], reader)
    end
end
local suspects, dropped, alone, is_suspect_free = pairs_of(KEYS[6]), {}, nil, false
for slot, deaths in pairs(suspects) do
    local cluster = cluster_of(slot)
    local holder, ends = string.match(call('HMGET', KEYS[2], cluster)[1] or '', '^(%S+) (%d+) %d+$')
    local is_free = not holder or holder == token or is_over(ends)
    local is_present = call('EXISTS', slot) == 1
    if is_present and tonumber(deaths) > 1 then
        call('DEL', slot)
        call('HINCRBY', KEYS[3], 'reader_died', 1)
        call('HINCRBY', KEYS[4], cluster, 1)
        dropped[#dropped + 1] = slot
        is_present = false
    end
    if not is_present then
        call('HDEL', KEYS[6], slot)
        suspects[slot] = nil
    elseif is_free then
        alone, is_suspect_free = is_for_suspects and slot or nil, true
    end
end

-- Claim mailboxes for this reader ---------------------------------------------------------------------------------

local names = call('HKEYS', KEYS[1])
local first, is_more = tonumber(ARGV[9]), false
local flags, places, wanted, claims, to_clear = {}, {}, {}, {}, {}

local function clear(cluster)
    to_clear[#to_clear + 1] = prefix .. cluster .. '.flag'
end

if is_everywhere then
    -- Drop claims of clusters that are no longer registered.
    local is_known = {}
    for _, cluster in ipairs(names) do
        is_known[cluster] = true
    end
    for _, cluster in ipairs(call('HKEYS', KEYS[2])) do
        if not is_known[cluster] then
            call('HDEL', KEYS[2], cluster)
        end
    end
else
    local keys = {}
    for i, cluster in ipairs(names) do
        keys[i] = prefix .. cluster .. '.flag'
    end
    -- Check eight flags with one command, because most clusters have none. Read at most three bytes of a flag, because
    -- an agent may set one of any size.
    for eighth = 1, #keys, 8 do
        local last = math.min(eighth + 7, #keys)
        local is_some = call('EXISTS', unpack(keys, eighth, last)) > 0
        for i = eighth, last do
            flags[i] = is_some and call('EXISTS', keys[i]) == 1 and call('GETRANGE', keys[i], 0, 2)
        end
    end
end
for i = first, first + #names - 1 do
    local place = i % #names + 1
    if is_everywhere or flags[place] then
        places[#places + 1], wanted[#wanted + 1] = place, names[place]
    end
    if flags[place] and #flags[place] > 2 then
        -- Our agents write at most two digits; remove anything longer.
        clear(names[place])
    end
end
in_parts(wanted, function(...)
    for _, claim in ipairs(call('HMGET', KEYS[2], ...)) do
        claims[#claims + 1] = claim
    end
end)

local mailboxes = {}
for i, place in ipairs(places) do
    if #mailboxes == most then
        first, is_more = place - 1, true
        break
    end
    local cluster = names[place]
    local holder, ends, turn = string.match(claims[i] or '', '^(%S+) (%d+) (%d+)$')
    if not holder or holder == token or is_over(ends) then
        local slots = {}
        for slot = 0, number - 1 do
            slots[slot + 1] = prefix .. cluster .. '.' .. slot
        end
        local taken = call('EXISTS', unpack(slots))
        if taken == 1 then
            -- In most mailboxes the flag names the slot.
            turn = string.match(flags[place] or '', '^%d%d?$') or turn
        end
        if taken > 0 then
            mailboxes[#mailboxes + 1] =
                {name = cluster, place = place, slots = slots, taken = taken, tried = 0, turn = turn or 0, bytes = 0}
        elseif flags[place] then
            clear(cluster)
        end
    end
end

-- Results in turns: a full mailbox delays no other -----------------------------------------------------------------

local found, bytes = {}, 0

-- Returns whether another result of this mailbox was read, and whether its share forbids it.
local function take(mailbox)
    while mailbox.taken > 0 and mailbox.tried < number do
        local slot = mailbox.slots[(mailbox.turn + mailbox.tried) % number + 1]
        local length = suspects[slot] and 0 or call('STRLEN', slot)
        if length >= shortest and length <= longest then
            if mailbox.bytes > 0 and mailbox.bytes + length > share then
                return false, true
            end
            mailbox.tried = mailbox.tried + 1
            mailbox.taken = mailbox.taken - 1
            found[#found + 1] = slot
            bytes, mailbox.bytes = bytes + length, mailbox.bytes + length
            return true, false
        end
        mailbox.tried = mailbox.tried + 1
        if not suspects[slot] and call('DEL', slot) == 1 then
            mailbox.taken = mailbox.taken - 1
            call('HINCRBY', KEYS[3], 'malformed', 1)
            call('HINCRBY', KEYS[4], mailbox.name, 1)
        end
    end
    return false, false
end

local function has_room()
    return #found < most and bytes < most_bytes
end

local is_found, is_cut, is_shared = not alone, is_more, false
while is_found and has_room() do
    is_found = false
    for _, mailbox in ipairs(mailboxes) do
        if has_room() then
            local is_read, is_over_share = take(mailbox)
            is_found, is_shared = is_read or is_found, is_over_share or is_shared
        elseif not is_cut then
            -- The next read begins with the first mailbox that had no room.
            first, is_cut = mailbox.place - 1, true
        end
    end
end

local mine, results = {}, {}
if alone then
    local cluster, length = cluster_of(alone), call('STRLEN', alone)
    if length >= shortest and length <= longest then
        local turn = string.match(call('HMGET', KEYS[2], cluster)[1] or '', ' (%d+)$') or 0
        found, mine = {alone}, {cluster, string.format('%s %.0f %d', token, now + hold, turn)}
    else
        -- The slot has other content now, which cannot be a result.
        call('DEL', alone)
        call('HDEL', KEYS[6], alone)
        call('HINCRBY', KEYS[3], 'malformed', 1)
        call('HINCRBY', KEYS[4], cluster, 1)
    end
end
for _, mailbox in ipairs(mailboxes) do
    if mailbox.taken == 0 then
        clear(mailbox.name)
    end
    if mailbox.bytes > 0 then
        mine[#mine + 1] = mailbox.name
        mine[#mine + 1] = string.format('%s %.0f %d', token, now + hold, (mailbox.turn + mailbox.tried) % number)
    end
end
in_parts(to_clear, function(...) call('DEL', ...) end)
if #found > 0 then
    call('HSET', KEYS[2], unpack(mine))
    -- The slots are recorded before they are read. If they kill the reader, the next reader knows them.
    call('HSET', KEYS[5], token, string.format('%.0f %s', now + hold, table.concat(found, ' ')))
    results = call('MGET', unpack(found))
end
local is_rest = is_more or is_shared or is_suspect_free or not has_room()
return {first % math.max(#names, 1), is_rest and 1 or 0, found, results, dropped}
