-- Finds the pairs that may be anything but fine, or have something to say: only those have to be judged.
-- ARGV  1 now, 2 number of fields, 3... fields to return, then keys of pair hashes
-- Returns for each of those pairs its place among the keys (from 0) and the values of the fields.
local now, fields = tonumber(ARGV[1]), tonumber(ARGV[2])
local wanted, found = {}, {}
for i = 3, 2 + fields do
    wanted[i - 2] = ARGV[i]
end
for i = 3 + fields, #ARGV do
    local state = redis.call('HMGET', ARGV[i], 'last_success', 'failing', 'valid_until', 'items', 'expired', 'skips',
        'unwritten', 'remark')
    local is_fine = state[1] and (tonumber(state[2]) or 0) == 0 and (tonumber(state[3]) or 0) > now
        and (tonumber(state[4]) or 0) > 0 and not state[5] and (tonumber(state[6]) or 0) == 0 and not state[7]
            and not state[8]
    if not is_fine then
        found[#found + 1] = i - 3 - fields
        found[#found + 1] = redis.call('HMGET', ARGV[i], unpack(wanted))
    end
end
return found
