-- Finds clusters with something in their mailbox.
-- ARGV  1 beginning of the names of slots, 2 number of slots, 3... cluster
-- Returns their names.
local found = {}
for i = 3, #ARGV do
    local slots = {}
    for slot = 0, tonumber(ARGV[2]) - 1 do
        slots[slot + 1] = ARGV[1] .. ARGV[i] .. '.' .. slot
    end
    if redis.call('EXISTS', unpack(slots)) > 0 then
        found[#found + 1] = ARGV[i]
    end
end
return found
