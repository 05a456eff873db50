-- Takes more of the results that wait, after one of them was taken already.
-- KEYS  1 results queue, 2 list of the worker's own
-- ARGV  1 how many may be taken together, 2 how many bytes; one alone may have more
-- Returns what is taken, newest first: what an earlier call took whose answer was lost is in it too, if there is room.
local most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local held = redis.call('LRANGE', KEYS[2], 0, -1)
local bytes = 0
for number, item in ipairs(held) do
    bytes = bytes + #item
    if number > 1 and bytes > most_bytes then
        -- The older ones stay for another time: what is let go of later is the newest.
        return {unpack(held, 1, number - 1)}
    end
end
local taken = {}
for number = #held + 1, most do
    local item = redis.call('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT')
    if not item then
        break
    end
    bytes = bytes + #item
    if number > 1 and bytes > most_bytes then
        -- What is in the list must fit into one note.
        redis.call('LMOVE', KEYS[2], KEYS[1], 'LEFT', 'RIGHT')
        break
    end
    taken[#taken + 1] = item
end
local found = {}
for i = #taken, 1, -1 do
    found[#found + 1] = taken[i]
end
for _, item in ipairs(held) do
    found[#found + 1] = item
end
return found
