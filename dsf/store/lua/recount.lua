-- Empties the read model and marks every pair, unless it is of this version.
-- KEYS  1 version, 2 entries, 3 scorers of the model
-- ARGV  1 version
-- Returns how many pairs were marked, or -1.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return -1
end
for _, scorer in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    for _, group in ipairs(redis.call('HKEYS', MODEL .. 'groups:' .. scorer)) do
        redis.call('DEL', MODEL .. 'group:' .. scorer .. '/' .. group)
    end
    redis.call('DEL', MODEL .. 'states:' .. scorer, MODEL .. 'ages:' .. scorer, MODEL .. 'values:' .. scorer,
        MODEL .. 'groups:' .. scorer)
end
redis.call('DEL', KEYS[3], MODEL .. 'clusters', MODEL .. 'changed', MODEL .. 'gone', MODEL .. 'grouped')
-- Whoever has seen a number of that sequence shall see that all is new.
redis.call('INCRBY', MODEL .. 'sequence', 1)
local count = 0
for _, pair in ipairs(redis.call('HKEYS', KEYS[2])) do
    model_mark(pair)
    count = count + 1
end
redis.call('SET', KEYS[1], ARGV[1])
return count
