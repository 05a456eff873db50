-- Takes one write out of the fleet-wide rate (GCRA): a steady pace and a small burst, whoever asks.
-- Uses the server's clock: those of several workers differ by more than the time between two writes.
-- KEYS  1 budget
-- ARGV  1 writes per second, 2 burst (writes)
-- Returns the seconds to wait before asking again; 0 where it was taken.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local gap, burst = 1 / tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local wait = arrival - gap * (burst - 1) - now
-- Nothing is ever booked further ahead than the burst, unless the server's clock was set back.
if wait > 0 and wait <= gap * burst then
    return string.format('%.6f', wait)
end
arrival = math.min(arrival, now + gap * (burst - 1))
redis.call('SET', KEYS[1], string.format('%.6f', arrival + gap), 'PX', math.ceil(1000 * gap * burst) + 1000)
return '0'
