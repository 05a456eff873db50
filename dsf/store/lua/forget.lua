-- Removes the data of pairs that are no longer in the schedule. A call that removes data notifies readers, and the next
-- call for the pair removes the notification.
-- KEYS  1 entries, 2 bytes of scores
-- ARGV  1 prefix of pair hashes, 2 prefix of histories, 3 number n of hashes with a field per pair, then n of these,
--       then pairs
-- Returns the pairs that had data.
local forgotten = {}
local first = 4 + tonumber(ARGV[3])
for i = first, #ARGV do
    local pair = ARGV[i]
    if redis.call('HEXISTS', KEYS[1], pair) == 0 then
        local score = redis.pcall('HMGET', ARGV[1] .. pair, 'score_of', 'score_size')
        if score[1] and tonumber(score[2]) then
            for _, owner in ipairs({score[1], score[1] .. '/' .. string.match(pair, '^[^/]*')}) do
                if redis.pcall('HINCRBY', KEYS[2], owner, -tonumber(score[2])) == 0 then
                    redis.pcall('HDEL', KEYS[2], owner)
                end
            end
        end
        local count = redis.call('DEL', ARGV[1] .. pair, ARGV[2] .. pair)
        for n = 4, first - 1 do
            count = count + redis.call('HDEL', ARGV[n], pair)
        end
        if count > 0 then
            note_change(pair)
            table.insert(forgotten, pair)
        else
            redis.call('ZREM', CHANGED, pair)
        end
    end
end
publish_changes()
return forgotten
