-- Empties slots whose results are in the books, and gives mailboxes back.
-- KEYS  1 claims, then slots
-- ARGV  1 token of the reader, then the end of each slot's result: a newer one that has taken its place ends with another
--       signature and stays; then clusters
local emptied, returned = {}, {}
for i = 2, #KEYS do
    if redis.call('GETRANGE', KEYS[i], -#ARGV[i], -1) == ARGV[i] then
        emptied[#emptied + 1] = KEYS[i]
    end
end
local clusters = {unpack(ARGV, #KEYS + 1)}
for i, claim in ipairs(redis.call('HMGET', KEYS[1], unpack(clusters))) do
    local holder, turn = string.match(claim or '', '^(%S+) %d+ (%d+)$')
    if holder == ARGV[1] then
        -- The next reader goes on where this one ended.
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
