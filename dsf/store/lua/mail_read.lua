-- Reads results that wait in mailboxes, one of each cluster in turn, and claims these mailboxes for the reader. In each
-- mailbox it goes on behind the slot that was read last: when the hub is behind, every scorer has its turn.
-- KEYS  1 clusters, 2 refused results by reason, 3 refused results by cluster
-- ARGV  1 prefix of slots and flags, 2 number of slots, 3 prefix of claims, 4 token of the reader, 5 milliseconds for
--       which a claim holds, 6 most results, 7 most bytes, 8 shortest and 9 longest result in bytes, 10 number of
--       the cluster to begin with, 11 '1' to look into every mailbox, else only into those with a flag
-- Returns {number of the cluster to begin with next time; 1 if more is waiting; slot, result, slot, result, ...}.
local prefix, number, claims, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local most, most_bytes, shortest, longest = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local is_everywhere = ARGV[11] == '1'
local call = redis.call

local function slots_of(cluster)
    local slots = {}
    for slot = 0, number - 1 do
        slots[slot + 1] = prefix .. cluster .. '.' .. slot
    end
    return slots
end

local names = call('HKEYS', KEYS[1])
local first, is_more = tonumber(ARGV[10]), false

-- Most mailboxes have no flag: one command looks at those of several clusters. Values are not read, as agents may set
-- flags of any size.
local TOGETHER = 8
local flags_of = {}
local function has_flag(i)
    local group = math.floor(i / TOGETHER)
    local flags = flags_of[group]
    if flags == nil then
        local some = {}
        for j = group * TOGETHER + 1, math.min((group + 1) * TOGETHER, #names) do
            some[#some + 1] = prefix .. names[j] .. '.flag'
        end
        flags = call('EXISTS', unpack(some))
        flags_of[group] = flags
    end
    return flags > 0 and call('EXISTS', prefix .. names[i + 1] .. '.flag') > 0
end

-- Which mailboxes are this reader's --------------------------------------------------------------------------------

local mailboxes = {}
for i = first, first + #names - 1 do
    if #mailboxes == most then
        first, is_more = i, true
        break
    end
    local cluster = names[i % #names + 1]
    local is_flagged = not is_everywhere and has_flag(i % #names)
    if is_flagged or is_everywhere then
        local slots = slots_of(cluster)
        local taken = call('EXISTS', unpack(slots))
        local holder, turn = string.match(call('GET', claims .. cluster) or '', '^(%S*) (%d+)$')
        if (is_flagged or taken > 0) and (not holder or holder == '' or holder == token) then
            mailboxes[#mailboxes + 1] = {name = cluster, slots = slots, taken = taken, tried = 0, turn = turn or 0}
        end
    end
end

-- Results in turns: a full mailbox delays no other -----------------------------------------------------------------

local answer, results, bytes = {}, 0, 0

local function take(mailbox)
    while mailbox.taken > 0 and mailbox.tried < number do
        local slot = mailbox.slots[(mailbox.turn + mailbox.tried) % number + 1]
        mailbox.tried = mailbox.tried + 1
        local length = call('STRLEN', slot)
        if length >= shortest and length <= longest then
            mailbox.taken = mailbox.taken - 1
            answer[#answer + 1], answer[#answer + 2] = slot, call('GET', slot)
            results, bytes, mailbox.is_read = results + 1, bytes + length, true
            return true
        elseif call('EXISTS', slot) == 1 then
            mailbox.taken = mailbox.taken - 1
            call('DEL', slot)
            call('HINCRBY', KEYS[2], 'malformed', 1)
            call('HINCRBY', KEYS[3], mailbox.name, 1)
        end
    end
    return false
end

local function has_room()
    return results < most and bytes < most_bytes
end

local is_found = true
while is_found and has_room() do
    is_found = false
    for _, mailbox in ipairs(mailboxes) do
        if has_room() then
            is_found = take(mailbox) or is_found
        end
    end
end
for _, mailbox in ipairs(mailboxes) do
    if mailbox.taken == 0 then
        call('DEL', prefix .. mailbox.name .. '.flag')
    end
    if mailbox.is_read then
        local turn = (mailbox.turn + mailbox.tried) % number
        call('SET', claims .. mailbox.name, token .. ' ' .. turn, 'PX', ARGV[5])
    end
end
return {first % math.max(#names, 1), (is_more or not has_room()) and 1 or 0, unpack(answer)}
