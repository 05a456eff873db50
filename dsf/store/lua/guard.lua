-- Removes queues of clusters that hold more than ticks can take.
-- ARGV  1 most bytes, 2 beginning of the names of queues, 3... cluster
-- Returns the clusters whose queue was removed.
local found = {}
for i = 3, #ARGV do
    local bytes = redis.call('MEMORY', 'USAGE', ARGV[2] .. ARGV[i])
    if bytes and bytes > tonumber(ARGV[1]) then
        redis.call('DEL', ARGV[2] .. ARGV[i])
        found[#found + 1] = ARGV[i]
    end
end
return found
