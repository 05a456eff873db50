-- Empties slots whose results are in the books, and releases mailboxes. A newer result that has replaced the ingested
-- one stays, because its start, which contains the signature, differs.
-- KEYS  1 claims by cluster, 2 reader -> the slots that it is reading, 3 suspect (a slot whose reader died) -> number
--       of readers that died, then slots
-- ARGV  1 token of the reader, then for each slot the start of its result, or '' if the result stays; then clusters
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
-- These slots are not suspects, because the reader is still running.
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], unpack(read))
