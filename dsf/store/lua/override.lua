-- Replaces an override if it is still the one that the caller has read, so that two people do not undo each other.
--
-- Notifies beat and the hub controller.
--
-- KEYS  1 overrides (hash)  2 wake (list)  3 hub changed (set)  4 hub wake (list)
-- ARGV  1 target  2 the override as it was read, "" for none  3 the new override as JSON, "" to remove it  4 scorer
-- Returns 1, or 0 when it has changed meanwhile.

local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if stored ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('SADD', KEYS[3], ARGV[4])
for _, wake in ipairs({KEYS[2], KEYS[4]}) do
  redis.call('LPUSH', wake, '1')
  redis.call('LTRIM', wake, 0, 0)
end
return 1
