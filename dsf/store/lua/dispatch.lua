-- Commits a batch of beat, whose rows are due pairs (a scorer on a cluster). Either all writes of a pair happen or
-- none, even if two beats are active.
--
-- KEYS  1 due (zset)  2 open runs (zset)  3 statistics (hash)  4 lag by scorer (hash)  5 skips (hash), then two per
--       row: pair hash, queue (list)
-- ARGV  1 now  2 number n of upper bounds of lags, then n bounds in ascending order, as in the names of fields,
--       then seven per row:
--       pair | due time as it was read | next due time | action | run member | deadline | message
--       action  send      the tick is pushed and the run opened
--               defer     only the due time moves
--               drop      the pair has no entry, and is removed from the schedule
--               (other)   the reason why the tick is skipped
-- A row is ignored if its due time has changed since it was read, because another beat has already dispatched it.
-- Returns the number of ignored rows, followed by the pairs that got no tick because their hash or queue is invalid.
-- The fields of a pair hash are described in dsf.store.pairs, the texts of skips in dsf.store.ticks, and the statistics
-- in dsf.beat.stats. Times are unix seconds.

local now, bound_count = tonumber(ARGV[1]), tonumber(ARGV[2])
local ROW, FIRST = 7, 3 + bound_count
local sent_ticks, ignored, lag_sum, failed_pairs = 0, 0, 0, {}
local reasons, lags, scorer_lags = {}, {}, {}
-- Number of consecutive skips after which readers show the pair as skipped.
local SHOWN_SKIPS = 3
local bounds = {}
for index = 1, bound_count do
  bounds[index] = tonumber(ARGV[2 + index])
end

local all_pairs = {}
for i = FIRST, #ARGV, ROW do
  all_pairs[#all_pairs + 1] = ARGV[i]
end
local due_times = redis.call('ZMSCORE', KEYS[1], unpack(all_pairs))
local skips = redis.call('HMGET', KEYS[5], unpack(all_pairs))
local new_due_times, opened_runs, dropped_pairs, new_skips, ended_skips = {}, {}, {}, {}, {}

local function add(list, first, second)
  list[#list + 1] = first
  list[#list + 1] = second
end

-- Counts and pushes a tick; returns false if the data of the pair is invalid, which must not stop the other pairs.
local function push_tick(number, message)
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
  for index = 1, bound_count do
    if lag <= bounds[index] then
      bucket = ARGV[2 + index]
      break
    end
  end
  lags[bucket] = (lags[bucket] or 0) + 1
  local field = string.match(pair, '/(.*)$') .. ':' .. bucket
  scorer_lags[field] = (scorer_lags[field] or 0) + 1
  lag_sum = lag_sum + lag
end

local function skip(number, pair, action)
  local hash = KEYS[4 + 2 * number]
  redis.pcall('HINCRBY', hash, 'n:scheduled', 1)
  redis.pcall('HINCRBY', hash, 'n:skipped:' .. action, 1)
  local ticks, since, reason = string.match(skips[number] or '', '^(%d+) (%d+) %d+ (.*)$')
  ticks = (tonumber(ticks) or 0) + 1
  add(new_skips, pair, string.format('%d %d %d %s', ticks, tonumber(since) or math.floor(now), math.floor(now), action))
  -- Notify readers of the first and the third skip, and of another reason, but not of each skip of a paused fleet.
  if ticks == 1 or ticks == SHOWN_SKIPS or reason ~= action then
    note_change(pair)
  end
  reasons[action] = (reasons[action] or 0) + 1
end

for number, pair in ipairs(all_pairs) do
  local i = FIRST + (number - 1) * ROW
  local due, next_due, action = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if not due_times[number] or tonumber(due_times[number]) ~= tonumber(due) then
    ignored = ignored + 1
  elseif action == 'drop' then
    add(dropped_pairs, pair)
  else
    add(new_due_times, next_due, pair)
    if action == 'send' then
      if push_tick(number, ARGV[i + 6]) then
        add(opened_runs, ARGV[i + 5], ARGV[i + 4])
        if skips[number] then
          add(ended_skips, pair)
          note_change(pair)
        end
        sent_ticks = sent_ticks + 1
        count_lag(pair, math.max(0, now - tonumber(due)))
      else
        add(failed_pairs, pair)
      end
    elseif action ~= 'defer' then
      skip(number, pair, action)
    end
  end
end

for _, write in ipairs({{'ZADD', KEYS[1], new_due_times}, {'ZREM', KEYS[1], dropped_pairs},
    {'ZADD', KEYS[2], opened_runs}, {'HSET', KEYS[5], new_skips}, {'HDEL', KEYS[5], ended_skips}}) do
  if #write[3] > 0 then
    redis.call(write[1], write[2], unpack(write[3]))
  end
end
publish_changes()
if sent_ticks > 0 then
  redis.call('HINCRBY', KEYS[3], 'ticks', sent_ticks)
  redis.call('HINCRBY', KEYS[3], 'lag:count', sent_ticks)
  redis.call('HINCRBYFLOAT', KEYS[3], 'lag:sum', string.format('%.6f', lag_sum))
end
for bucket, number in pairs(lags) do
  redis.call('HINCRBY', KEYS[3], 'lag:' .. bucket, number)
end
for field, number in pairs(scorer_lags) do
  redis.call('HINCRBY', KEYS[4], field, number)
end
for reason, number in pairs(reasons) do
  redis.call('HINCRBY', KEYS[3], 'skipped:' .. reason, number)
end
return {ignored, unpack(failed_pairs)}
