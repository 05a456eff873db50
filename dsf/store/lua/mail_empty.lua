-- Empties slots whose results are in the books, and gives mailboxes back.
-- KEYS  slots, then claims of their mailboxes
-- ARGV  1 token of the reader, 2 number of slots, then the end of each slot's result: a newer one that has taken its
--       place ends with another signature and stays
local slots = tonumber(ARGV[2])
for i = 1, slots do
    local ending = ARGV[2 + i]
    if redis.call('GETRANGE', KEYS[i], -#ending, -1) == ending then
        redis.call('DEL', KEYS[i])
    end
end
for i = slots + 1, #KEYS do
    if redis.call('GET', KEYS[i]) == ARGV[1] then
        redis.call('DEL', KEYS[i])
    end
end
