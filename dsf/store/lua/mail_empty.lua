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
    local holder, turn = string.match(redis.call('GET', KEYS[i]) or '', '^(%S*) (%d+)$')
    if holder == ARGV[1] then
        -- The next reader goes on where this one ended; ten minutes are longer than a mailbox waits for its turn.
        redis.call('SET', KEYS[i], ' ' .. turn, 'EX', 600)
    end
end
