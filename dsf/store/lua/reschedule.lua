-- Writes entries and moves due times. Beat may be dispatching the same pairs at this moment: it moves a pair only if its
-- due time is still the one it has read. Therefore every row changes the due time, by at least a microsecond; without
-- that, beat could set a due time from an entry or override that has just been replaced.
--
-- KEYS  1 entries (hash)  2 due (zset)  3 spread (string: first runs are given out up to here)  4 wake (list)
-- ARGV  1 now  2 seconds between two first runs, then four per row:
--       pair | its new entry as JSON, or "" to leave it | how | slot
--       how   early  due at the slot or earlier, never later than before
--             now    due at once (many: spread), at the slot at the latest, never later than before
--       A pair without a due time is new: it is treated as `now`.
-- Returns the number of pairs that were changed. Times are unix seconds.

local now, gap = tonumber(ARGV[1]), tonumber(ARGV[2])
-- A user of the page may write anything there. First runs of all pairs that there can be fit into a day.
local spread = tonumber(redis.call('GET', KEYS[3]) or '') or 0
local free = (spread > now and spread < now + 86400) and spread or now
local given = false
local changed = 0

for i = 3, #ARGV, 4 do
  local pair, entry, how, slot = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local known = true
  if entry ~= '' then
    redis.call('HSET', KEYS[1], pair, entry)
  else
    known = redis.call('HEXISTS', KEYS[1], pair) == 1
  end
  if known then
    note_change(pair)
    local score = redis.call('ZSCORE', KEYS[2], pair)
    local old = score and tonumber(score)
    local due = slot
    if how == 'now' or not old then
      due = math.min(free, slot)
      if old and old <= due then
        due = old
      elseif free <= slot then
        free = free + gap
        given = true
      end
    else
      due = math.min(old, slot)
    end
    if due == old then
      due = due - 0.000001
    end
    -- A Lua number turned into a string by itself would lose everything below a tenth of a millisecond.
    redis.call('ZADD', KEYS[2], string.format('%.6f', due), pair)
    changed = changed + 1
  end
end

tell_readers()
if given then
  redis.call('SET', KEYS[3], string.format('%.6f', free), 'PX', math.ceil((free - now) * 1000) + 1000)
end
if changed > 0 then
  redis.call('LPUSH', KEYS[4], '1')
  redis.call('LTRIM', KEYS[4], 0, 0)
end
return changed
