-- Empties slots whose results are in the books, and releases mailboxes.
-- KEYS  1 claims, 2 slots that are being read by reader, 3 suspects: slots whose readers died, then slots
-- ARGV  1 token of the reader, then for each slot the start of its result, or '' if the result stays; then clusters
-- A newer result that has replaced the read one stays, because its start with the signature differs.
local FIRST = 3
local emptied, read, returned = {}, {}, {}
for i = FIRST + 1, #KEYS do
    local mark = ARGV[i - FIRST + 1]
    if mark ~= '' and redis.call('GETRANGE', KEYS[i], 0, #mark - 1) == mark then
        emptied[#emptied + 1] = KEYS[i]
    end
    read[#read + 1] = KEYS[i]
end
local clusters = {unpack(ARGV, #KEYS - FIRST + 2)}
for i, claim in ipairs(redis.call('HMGET', KEYS[1], unpack(clusters))) do
    local holder, turn = string.match(claim or '', '^(%S+) %d+ (%d+)$')
    if holder == ARGV[1] then
        -- The next reader continues where this one ended.
        returned[#returned + 1] = clusters[i]
        returned[#returned + 1] = '- 0 ' .. turn
    end
end
if #emptied > 0 then
    redis.call('DEL', unpack(emptied))
end
if #returned > 0 then
    redis.call('HSET', KEYS[1], unpack(returned))
end
-- The reader has survived these slots.
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], unpack(read))
