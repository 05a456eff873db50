-- Takes more of the results that wait, after one of them was taken already.
-- KEYS  1 results queue, 2 list of the worker's own
-- ARGV  1 how many may be in that list, 2 how many bytes
-- Returns the whole list, newest first: what an earlier call took whose answer was lost is in it too.
local bytes = 0
for _, item in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    bytes = bytes + #item
end
for _ = redis.call('LLEN', KEYS[2]) + 1, tonumber(ARGV[1]) do
    if bytes >= tonumber(ARGV[2]) then
        break
    end
    local item = redis.call('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT')
    if not item then
        break
    end
    bytes = bytes + #item
end
return redis.call('LRANGE', KEYS[2], 0, -1)
