-- Removes what is known of pairs that are not in the schedule any more.
-- KEYS  1 entries, 2 known pairs
-- ARGV  1 prefix of pair hashes, 2 prefix of histories, 3... pair
-- Returns the pairs of which something was left.
local found = {}
for i = 3, #ARGV do
    local pair = ARGV[i]
    if redis.call('HEXISTS', KEYS[1], pair) == 0 then
        if redis.call('DEL', ARGV[1] .. pair, ARGV[2] .. pair) > 0 then
            table.insert(found, pair)
        end
        redis.call('SREM', KEYS[2], pair)
    end
end
return found
