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
-- A row whose due time is no longer the one that was read is skipped: another beat has already dispatched it.
-- Returns {number of skipped rows, pairs that get no tick as their hash or queue is spoilt, ...}. Fields of the pair hash
-- are described in dsf.store.pairs, the texts of the skips in dsf.store.ticks, the statistics in dsf.beat.stats. Times
-- are unix seconds.

local now, n = tonumber(ARGV[1]), tonumber(ARGV[2])
local ROW, FIRST = 7, 3 + n
local sent, left, lag_sum, spoilt = 0, 0, 0, {}
local reasons, lags, lags_of = {}, {}, {}
-- Consecutive skips from which readers see them as a state of the pair.
local MANY = 3
local bounds = {}
for b = 1, n do
  bounds[b] = tonumber(ARGV[2 + b])
end

local all_pairs = {}
for i = FIRST, #ARGV, ROW do
  all_pairs[#all_pairs + 1] = ARGV[i]
end
local stored = redis.call('ZMSCORE', KEYS[1], unpack(all_pairs))
local skips = redis.call('HMGET', KEYS[5], unpack(all_pairs))
local due_now, opened, dropped, skips_now, skips_over = {}, {}, {}, {}, {}

local function add(list, one, other)
  list[#list + 1] = one
  list[#list + 1] = other
end

-- Returns true if the tick was counted and pushed. A pair whose data is spoilt must not stop the others.
local function push(number, message)
  local hash, queue = KEYS[4 + 2 * number], KEYS[5 + 2 * number]
  if type(redis.pcall('HINCRBY', hash, 'n:scheduled', 1)) ~= 'number' then
    return false
  end
  if type(redis.pcall('LPUSH', queue, message)) ~= 'number' then
    redis.call('HINCRBY', hash, 'n:scheduled', -1)
    return false
  end
  return true
end

local function count_lag(pair, lag)
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
end

local function skip(number, pair, action)
  local hash = KEYS[4 + 2 * number]
  redis.pcall('HINCRBY', hash, 'n:scheduled', 1)
  redis.pcall('HINCRBY', hash, 'n:skipped:' .. action, 1)
  local ticks, since, reason = string.match(skips[number] or '', '^(%d+) (%d+) %d+ (.*)$')
  ticks = (tonumber(ticks) or 0) + 1
  add(skips_now, pair, string.format('%d %d %d %s', ticks, tonumber(since) or math.floor(now), math.floor(now), action))
  -- Notify readers on the first and third skip and when the reason changes, not on each skip of a paused fleet.
  if ticks == 1 or ticks == MANY or reason ~= action then
    note_change(pair)
  end
  reasons[action] = (reasons[action] or 0) + 1
end

for number, pair in ipairs(all_pairs) do
  local i = FIRST + (number - 1) * ROW
  local due, next_due, action = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if not stored[number] or tonumber(stored[number]) ~= tonumber(due) then
    left = left + 1
  elseif action == 'drop' then
    add(dropped, pair)
  else
    add(due_now, next_due, pair)
    if action == 'send' then
      if push(number, ARGV[i + 6]) then
        add(opened, ARGV[i + 5], ARGV[i + 4])
        if skips[number] then
          add(skips_over, pair)
          note_change(pair)
        end
        sent = sent + 1
        count_lag(pair, math.max(0, now - tonumber(due)))
      else
        add(spoilt, pair)
      end
    elseif action ~= 'defer' then
      skip(number, pair, action)
    end
  end
end

for _, write in ipairs({{'ZADD', KEYS[1], due_now}, {'ZREM', KEYS[1], dropped}, {'ZADD', KEYS[2], opened},
    {'HSET', KEYS[5], skips_now}, {'HDEL', KEYS[5], skips_over}}) do
  if #write[3] > 0 then
    redis.call(write[1], write[2], unpack(write[3]))
  end
end
tell_readers()
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
return {left, unpack(spoilt)}
