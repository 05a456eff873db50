-- Commits one batch of beat: for each due pair everything happens or nothing, also with two beats at work.
--
-- KEYS  1 due (zset)  2 open runs (zset)  3 statistics (hash)  4 lag by scorer (hash), then two per row: pair hash,
--       queue (list)
-- ARGV  1 now  2 number of lag bounds n, then n bounds in rising order (as they stand in field names),
--       then seven per row:
--       pair | due time as it was read | next due time | action | run member | deadline | message
--       action  send      the tick is pushed and the run opened
--               defer     only the due time moves
--               drop      the pair has no entry: it leaves the schedule
--               else      the reason for which the tick is skipped
-- A row whose due time is no longer the one that was read is left alone: somebody else had it.
-- Returns the number of rows left alone. Fields of the pair hash are described in dsf.store.pairs and
-- dsf.store.skips, those of the statistics in dsf.schedule.stats. Times are unix seconds.

local now, n = tonumber(ARGV[1]), tonumber(ARGV[2])
local sent, left, lag_sum = 0, 0, 0
local reasons, lags, lags_of = {}, {}, {}
local key = 5
local bounds = {}
for b = 1, n do
  bounds[b] = tonumber(ARGV[2 + b])
end

-- Beat may only count in the pair's hash, so a number is set by adding what it lacks.
local function set(hash, field, value)
  local lacks = value - redis.call('HINCRBY', hash, field, 0)
  if lacks ~= 0 then
    redis.call('HINCRBY', hash, field, lacks)
  end
  return lacks
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
      if set(KEYS[key], 'skips', 0) <= -MODEL_SKIPS then
        model_mark(pair)
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
      local skips = redis.call('HINCRBY', KEYS[key], 'skips', 1)
      if skips == 1 then
        set(KEYS[key], 'skips_since', math.floor(now))
      end
      set(KEYS[key], 'skip_at:' .. action, math.floor(now))
      -- The read model hears of it when it matters: not of each skip of a fleet that is paused.
      local is_other = set(KEYS[key], 'skip_for', MODEL_REASON[action] or 0) ~= 0
      if skips == MODEL_SKIPS or (skips > MODEL_SKIPS and is_other) then
        model_mark(pair)
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
