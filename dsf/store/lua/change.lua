-- Writes down what a person did and wakes the hub controller, which makes an Event of it. Returns the id.
-- KEYS  1 stream, 2 list that wakes
-- ARGV  1 longest length of the stream, 2 the deed, 3 longest length of that list
local id = redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', 'change', ARGV[2])
redis.call('LPUSH', KEYS[2], '1')
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[3]) - 1)
return id
