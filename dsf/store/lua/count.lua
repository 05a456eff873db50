-- Adds to counters.
-- KEYS  1 hash
-- ARGV  field and whole number, in turns
for i = 1, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
