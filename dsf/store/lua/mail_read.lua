-- Reads results that wait in mailboxes, one of each cluster in turn, and claims these mailboxes for the reader.
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

local function has_mail(cluster)
    if is_everywhere then
        return call('EXISTS', unpack(slots_of(cluster))) > 0
    end
    return call('EXISTS', prefix .. cluster .. '.flag') > 0
end

-- Which mailboxes are this reader's --------------------------------------------------------------------------------

local names = call('HKEYS', KEYS[1])
local mailboxes, first, is_more = {}, tonumber(ARGV[10]), false
for i = first, first + #names - 1 do
    if #mailboxes == most then
        first, is_more = i, true
        break
    end
    local cluster = names[i % #names + 1]
    if has_mail(cluster) then
        local holder = call('GET', claims .. cluster)
        if not holder or holder == token then
            mailboxes[#mailboxes + 1] = {name = cluster, slots = slots_of(cluster), tried = 0}
        end
    end
end

-- Results in turns: a full mailbox delays no other -----------------------------------------------------------------

local answer, results, bytes = {}, 0, 0
-- Slots in another order each time, so that none waits behind others that are filled again and again.
local shift = call('TIME')[2] % number

local function take(mailbox)
    while mailbox.tried < number do
        local slot = mailbox.slots[(mailbox.tried + shift) % number + 1]
        mailbox.tried = mailbox.tried + 1
        local length = call('STRLEN', slot)
        if length >= shortest and length <= longest then
            answer[#answer + 1], answer[#answer + 2] = slot, call('GET', slot)
            results, bytes, mailbox.is_read = results + 1, bytes + length, true
            return true
        elseif call('DEL', slot) == 1 then
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
    if mailbox.tried == number then
        call('DEL', prefix .. mailbox.name .. '.flag')
    end
    if mailbox.is_read then
        call('SET', claims .. mailbox.name, token, 'PX', ARGV[5])
    end
end
return {first % math.max(#names, 1), (is_more or not has_room()) and 1 or 0, unpack(answer)}
