-- A slot is a suspect if its reader died during the read. Each suspect is read alone, and dropped if that reader dies,
-- too.
-- KEYS  1 clusters, 2 claims by cluster, 3 refused results by reason, 4 refused results by cluster,
--       5 reader -> the slots that it is reading, 6 suspect -> number of readers that died
-- ARGV  1 prefix of slots and flags, 2 number of slots, 3 token of the reader, 4 milliseconds for which a claim holds,
--       5 maximum results, 6 maximum bytes, 7 minimum and 8 maximum bytes of a result, 9 number of the cluster to
--       begin with, 10 '1' to read every mailbox, else only mailboxes with a flag, 11 maximum bytes of a cluster beyond
--       its first result, 12 '1' to read a suspect, if there is one
-- Returns {number of the cluster to begin with next time; 1 if the mailboxes have more results; slots; results; dropped
-- suspects}.
local prefix, slot_count, token, claim_milliseconds = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local max_results, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local min_length, max_length = tonumber(ARGV[7]), tonumber(ARGV[8])
local is_everywhere, max_cluster_bytes, reads_suspect = ARGV[10] == '1', tonumber(ARGV[11]), ARGV[12] == '1'
local call = redis.call
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Maximum names in one command, because a function of Lua takes at most 8,000 arguments.
local MAX_NAMES = 1000

local function run_in_parts(names, run)
    for first = 1, #names, MAX_NAMES do
        run(unpack(names, first, math.min(first + MAX_NAMES - 1, #names)))
    end
end

-- Suspects ----------------------------------------------------------------------------------------------------------

-- A claim whose end is later than now plus the claim time counts as expired, too, because a fast clock wrote it.
local function has_expired(end_time)
    return tonumber(end_time) <= now or tonumber(end_time) > now + claim_milliseconds
end

local function read_hash(key)
    local fields, values = call('HGETALL', key), {}
    for i = 1, #fields, 2 do
        values[fields[i]] = fields[i + 1]
    end
    return values
end

local function parse_cluster(slot)
    return string.match(slot, '^(.*)%.%d+$', #prefix + 1)
end

for reader, record in pairs(read_hash(KEYS[5])) do
    if reader ~= token and has_expired(string.match(record, '^%d+')) then
        for slot in string.gmatch(record, ' (%S+)') do
            call('HINCRBY', KEYS[6], slot, 1)
        end
        call('HDEL', KEYS[5], reader)
    end
end
local suspects, dropped, suspect_slot, has_readable_suspect = read_hash(KEYS[6]), {}, nil, false
for slot, deaths in pairs(suspects) do
    local cluster = parse_cluster(slot)
    local holder, ends = string.match(call('HMGET', KEYS[2], cluster)[1] or '', '^(%S+) (%d+) %d+$')
    local is_free = not holder or holder == token or has_expired(ends)
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
        suspect_slot, has_readable_suspect = reads_suspect and slot or nil, true
    end
end

-- Claim mailboxes for this reader ---------------------------------------------------------------------------------

local names = call('HKEYS', KEYS[1])
local first, has_unread_mailbox = tonumber(ARGV[9]), false
local flags, indices, wanted_clusters, claims, stale_flags = {}, {}, {}, {}, {}

local function clear_flag(cluster)
    stale_flags[#stale_flags + 1] = prefix .. cluster .. '.flag'
end

if is_everywhere then
    -- Drop claims of clusters that are no longer registered.
    local registered = {}
    for _, cluster in ipairs(names) do
        registered[cluster] = true
    end
    for _, cluster in ipairs(call('HKEYS', KEYS[2])) do
        if not registered[cluster] then
            call('HDEL', KEYS[2], cluster)
        end
    end
else
    local keys = {}
    for i, cluster in ipairs(names) do
        keys[i] = prefix .. cluster .. '.flag'
    end
    -- Check eight flags with one command, because most clusters have no flag. Read at most three bytes of a flag,
    -- because an agent may set a flag of any size.
    for start = 1, #keys, 8 do
        local last = math.min(start + 7, #keys)
        local has_flag = call('EXISTS', unpack(keys, start, last)) > 0
        for i = start, last do
            flags[i] = has_flag and call('EXISTS', keys[i]) == 1 and call('GETRANGE', keys[i], 0, 2)
        end
    end
end
for i = first, first + #names - 1 do
    local index = i % #names + 1
    if is_everywhere or flags[index] then
        indices[#indices + 1], wanted_clusters[#wanted_clusters + 1] = index, names[index]
    end
    if flags[index] and #flags[index] > 2 then
        -- Our agents write at most two digits; remove anything longer.
        clear_flag(names[index])
    end
end
run_in_parts(wanted_clusters, function(...)
    for _, claim in ipairs(call('HMGET', KEYS[2], ...)) do
        claims[#claims + 1] = claim
    end
end)

local mailboxes = {}
for i, index in ipairs(indices) do
    if #mailboxes == max_results then
        first, has_unread_mailbox = index - 1, true
        break
    end
    local cluster = names[index]
    local holder, ends, next_slot = string.match(claims[i] or '', '^(%S+) (%d+) (%d+)$')
    if not holder or holder == token or has_expired(ends) then
        local slots = {}
        for slot = 0, slot_count - 1 do
            slots[slot + 1] = prefix .. cluster .. '.' .. slot
        end
        local taken = call('EXISTS', unpack(slots))
        if taken == 1 then
            -- In most mailboxes the flag names the slot.
            next_slot = string.match(flags[index] or '', '^%d%d?$') or next_slot
        end
        if taken > 0 then
            mailboxes[#mailboxes + 1] = {
                name = cluster, index = index, slots = slots, taken = taken, tried = 0, next_slot = next_slot or 0,
                bytes = 0,
            }
        elseif flags[index] then
            clear_flag(cluster)
        end
    end
end

-- Read round-robin, so that a full mailbox does not delay the others ------------------------------------------------

local read_slots, bytes = {}, 0

-- Returns true if a further result of this mailbox was read, and true if the bytes of its cluster are used up.
local function read_next(mailbox)
    while mailbox.taken > 0 and mailbox.tried < slot_count do
        local slot = mailbox.slots[(mailbox.next_slot + mailbox.tried) % slot_count + 1]
        local length = suspects[slot] and 0 or call('STRLEN', slot)
        if length >= min_length and length <= max_length then
            if mailbox.bytes > 0 and mailbox.bytes + length > max_cluster_bytes then
                return false, true
            end
            mailbox.tried = mailbox.tried + 1
            mailbox.taken = mailbox.taken - 1
            read_slots[#read_slots + 1] = slot
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

local function has_capacity()
    return #read_slots < max_results and bytes < max_bytes
end

local has_progress, is_full, is_limited = not suspect_slot, has_unread_mailbox, false
while has_progress and has_capacity() do
    has_progress = false
    for _, mailbox in ipairs(mailboxes) do
        if has_capacity() then
            local is_read, is_over_limit = read_next(mailbox)
            has_progress, is_limited = is_read or has_progress, is_over_limit or is_limited
        elseif not is_full then
            -- The next read begins with the first mailbox that was left out.
            first, is_full = mailbox.index - 1, true
        end
    end
end

local new_claims, results = {}, {}
if suspect_slot then
    local cluster, length = parse_cluster(suspect_slot), call('STRLEN', suspect_slot)
    if length >= min_length and length <= max_length then
        local next_slot = string.match(call('HMGET', KEYS[2], cluster)[1] or '', ' (%d+)$') or 0
        read_slots = {suspect_slot}
        new_claims = {cluster, string.format('%s %.0f %d', token, now + claim_milliseconds, next_slot)}
    else
        -- The slot was overwritten with content that cannot be a result.
        call('DEL', suspect_slot)
        call('HDEL', KEYS[6], suspect_slot)
        call('HINCRBY', KEYS[3], 'malformed', 1)
        call('HINCRBY', KEYS[4], cluster, 1)
    end
end
for _, mailbox in ipairs(mailboxes) do
    if mailbox.taken == 0 then
        clear_flag(mailbox.name)
    end
    if mailbox.bytes > 0 then
        local next_slot = (mailbox.next_slot + mailbox.tried) % slot_count
        new_claims[#new_claims + 1] = mailbox.name
        new_claims[#new_claims + 1] = string.format('%s %.0f %d', token, now + claim_milliseconds, next_slot)
    end
end
run_in_parts(stale_flags, function(...) call('DEL', ...) end)
if #read_slots > 0 then
    call('HSET', KEYS[2], unpack(new_claims))
    -- Record the slots before the read, so that the next reader knows them if they kill this one.
    call('HSET', KEYS[5], token, string.format('%.0f %s', now + claim_milliseconds, table.concat(read_slots, ' ')))
    results = call('MGET', unpack(read_slots))
end
local has_more = has_unread_mailbox or is_limited or has_readable_suspect or not has_capacity()
return {first % math.max(#names, 1), has_more and 1 or 0, read_slots, results, dropped}
