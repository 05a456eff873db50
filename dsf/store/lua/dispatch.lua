-- Commits one batch of beat: for each due pair everything happens or nothing, also with two beats at work.
--
-- KEYS  1 due (zset)  2 open runs (zset)  3 statistics (hash)  4 lag by scorer (hash)  5 skips (hash), then two per row:
--       pair hash, queue (list)
-- ARGV  1 now  2 number of lag bounds n, then n bounds in rising order (as they stand in field names),
--       then seven per row:
--       pair | due time as it was read | next due time | action | run member | deadline | message
--       action  send      the tick is pushed and the run opened
--               defer     only the due time moves
--               drop      the pair has no entry: it leaves the schedule
--               else      the reason for which the tick is skipped
-- A row whose due time is no longer the one that was read is left alone: somebody else had it.
-- Returns the number of rows left alone. Fields of the pair hash are described in dsf.store.pairs, the texts of the
-- skips in dsf.store.ticks, the statistics in dsf.schedule.stats. Times are unix seconds.

local now, n = tonumber(ARGV[1]), tonumber(ARGV[2])
local sent, left, lag_sum = 0, 0, 0
local reasons, lags, lags_of = {}, {}, {}
local key = 6
-- So many skips in a row are a state of the pair.
local MANY = 3
local bounds = {}
for b = 1, n do
  bounds[b] = tonumber(ARGV[2 + b])
end

for i = 3 + n, #ARGV, 7 do
  local pair, due, next_due, action = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local stored = redis.call('ZSCORE', KEYS[1], pair)
  if not stored or tonumber(stored) ~= tonumber(due) then
    left = left + 1
  elseif action == 'drop' then
    redis.call('ZREM', KEYS[1], pair)
  else
    redis.call('ZADD', KEYS[1], next_due, pair)
    if action == 'send' then
      redis.call('LPUSH', KEYS[key + 1], ARGV[i + 6])
      redis.call('ZADD', KEYS[2], ARGV[i + 5], ARGV[i + 4])
      redis.call('HINCRBY', KEYS[key], 'n:scheduled', 1)
      if redis.call('HDEL', KEYS[5], pair) == 1 then
        tell_readers(pair)
      end
      sent = sent + 1
      local lag = math.max(0, now - tonumber(due))
      local bucket = '+Inf'
      for b = 1, n do
        if lag <= bounds[b] then
          bucket = ARGV[2 + b]
          break
        end
      end
      lags[bucket] = (lags[bucket] or 0) + 1
      local field = string.match(pair, '/(.*)$') .. ':' .. bucket
      lags_of[field] = (lags_of[field] or 0) + 1
      lag_sum = lag_sum + lag
    elseif action ~= 'defer' then
      redis.call('HINCRBY', KEYS[key], 'n:scheduled', 1)
      redis.call('HINCRBY', KEYS[key], 'n:skipped:' .. action, 1)
      local ticks, since, reason = string.match(redis.call('HGET', KEYS[5], pair) or '', '^(%d+) (%d+) %d+ (.*)$')
      ticks = (tonumber(ticks) or 0) + 1
      redis.call('HSET', KEYS[5], pair, string.format('%d %d %d %s', ticks,
        tonumber(since) or math.floor(now), math.floor(now), action))
      -- Readers hear of it when it matters: not of each skip of a fleet that is paused.
      if ticks == 1 or ticks == MANY or (ticks > MANY and reason ~= action) then
        tell_readers(pair)
      end
      reasons[action] = (reasons[action] or 0) + 1
    end
  end
  key = key + 2
end

if sent > 0 then
  redis.call('HINCRBY', KEYS[3], 'ticks', sent)
  redis.call('HINCRBY', KEYS[3], 'lag:count', sent)
  redis.call('HINCRBYFLOAT', KEYS[3], 'lag:sum', string.format('%.6f', lag_sum))
end
for bucket, number in pairs(lags) do
  redis.call('HINCRBY', KEYS[3], 'lag:' .. bucket, number)
end
for field, number in pairs(lags_of) do
  redis.call('HINCRBY', KEYS[4], field, number)
end
for reason, number in pairs(reasons) do
  redis.call('HINCRBY', KEYS[3], 'skipped:' .. reason, number)
end
return left
