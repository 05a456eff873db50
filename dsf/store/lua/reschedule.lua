-- Writes entries and changes due times. Beat may dispatch the same pairs at this moment, and changes a due time only if
-- it is still the one that beat has read. Every row therefore changes the due time by at least a microsecond. Otherwise
-- beat could set a due time from an entry or override that has just been replaced.
--
-- KEYS  1 entries (hash)  2 due (zset)  3 time up to which first runs are planned (string)  4 wake (list)
-- ARGV  1 now  2 seconds between two first runs, then four per row:
--       pair | its new entry as JSON, or "" to leave it | mode | slot
--       mode  early  due at the slot or earlier, never later than before
--             now    due at once, or soon if there are many pairs; at the slot at the latest, never later than before
--       A pair without a due time is new, and is treated as with `now`.
-- Returns the number of pairs that were changed. Times are unix seconds.

local now, gap = tonumber(ARGV[1]), tonumber(ARGV[2])
-- Ignore a time more than a day ahead: users of the page may write any value to this key, and the first runs of any
-- possible number of pairs fit into a day.
local spread = tonumber(redis.call('GET', KEYS[3]) or '') or 0
local next_free = (spread > now and spread < now + 86400) and spread or now
local is_first_run_planned = false
local changed = 0

for i = 3, #ARGV, 4 do
  local pair, entry, mode, slot = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local has_entry = true
  if entry ~= '' then
    redis.call('HSET', KEYS[1], pair, entry)
  else
    has_entry = redis.call('HEXISTS', KEYS[1], pair) == 1
  end
  if has_entry then
    note_change(pair)
    local score = redis.call('ZSCORE', KEYS[2], pair)
    local old_due = score and tonumber(score)
    local due = slot
    if mode == 'now' or not old_due then
      due = math.min(next_free, slot)
      if old_due and old_due <= due then
        due = old_due
      elseif next_free <= slot then
        next_free = next_free + gap
        is_first_run_planned = true
      end
    else
      due = math.min(old_due, slot)
    end
    if due == old_due then
      due = due - 0.000001
    end
    -- Lua's own conversion to a string would drop all digits below a tenth of a millisecond.
    redis.call('ZADD', KEYS[2], string.format('%.6f', due), pair)
    changed = changed + 1
  end
end

publish_changes()
if is_first_run_planned then
  redis.call('SET', KEYS[3], string.format('%.6f', next_free), 'PX', math.ceil((next_free - now) * 1000) + 1000)
end
if changed > 0 then
  redis.call('LPUSH', KEYS[4], '1')
  redis.call('LTRIM', KEYS[4], 0, 0)
end
return changed
