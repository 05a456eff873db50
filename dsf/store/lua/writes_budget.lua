-- Some writes out of the fleet-wide rate (GCRA): a steady pace and a small burst, whoever asks.
-- Uses the server's clock: those of several workers differ by more than the time between two writes.
-- KEYS  1 budget
-- ARGV  1 writes per second, 2 burst (writes), 3 how many are wanted
-- Returns {how many may happen now, seconds to wait before asking again where that is none}.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local gap, burst = 1 / tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local wait = arrival - gap * (burst - 1) - now
-- Nothing is ever booked further ahead than the burst, unless the server's clock was set back.
if wait > 0 and wait <= gap * burst then
    return {0, string.format('%.6f', wait)}
end
arrival = math.min(arrival, now + gap * (burst - 1))
-- A write is due a gap after the one before it, and may come early by the burst.
local granted = math.min(tonumber(ARGV[3]), 1 + math.floor((now + gap * (burst - 1) - arrival) / gap + 0.001))
redis.call('SET', KEYS[1], string.format('%.6f', arrival + gap * granted), 'PX', math.ceil(1000 * gap * burst) + 1000)
return {granted, '0'}
