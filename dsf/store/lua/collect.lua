-- Moves results out of mailboxes into the queue, one of each cluster in turn, while there is room.
-- KEYS  1 results queue, 2 refused results, 3 refused mail by cluster
-- ARGV  1 most results in the queue, 2 most bytes there, 3 shortest and 4 longest message that can be a result,
--       5 beginning of the names of slots, then two per cluster: name, its slots with something in them (`3 4 0`)
-- Returns {how many were moved, 0 when all is done; when there was no more room the number of the cluster that is next,
-- plus the number of clusters if all have had a turn; how many of its slots are empty now for each cluster (`2 0 1`),
-- name of each cluster with something that is no result, ...}.
local most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local shortest, longest, prefix = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local held = redis.call('LLEN', KEYS[1])
local bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) or 0
local moved, all_refused, refused, turns = 0, 0, {}, 0
local clusters = {}
for i = 6, #ARGV, 2 do
    clusters[#clusters + 1] = {name = ARGV[i], slots = string.gmatch(ARGV[i + 1], '%d+'), empty = 0}
end

local function answer(next)
    if all_refused > 0 then
        redis.call('HINCRBY', KEYS[2], 'malformed', all_refused)
    end
    local empty = {}
    for i, cluster in ipairs(clusters) do
        empty[i] = cluster.empty
    end
    local found = {moved, next, table.concat(empty, ' ')}
    for cluster, number in pairs(refused) do
        redis.call('HINCRBY', KEYS[3], cluster, number)
        found[#found + 1] = cluster
    end
    return found
end

local is_busy = true
while is_busy do
    is_busy = false
    for i, cluster in ipairs(clusters) do
        if held >= most or bytes >= most_bytes then
            return answer(i + (turns > 0 and #clusters or 0))
        end
        for slot in cluster.slots do
            cluster.empty = cluster.empty + 1
            local key = prefix .. cluster.name .. '.' .. slot
            local length = redis.call('STRLEN', key)
            if length < shortest or length > longest then
                if redis.call('DEL', key) == 1 then
                    all_refused = all_refused + 1
                    refused[cluster.name] = (refused[cluster.name] or 0) + 1
                end
            else
                redis.call('LPUSH', KEYS[1], redis.call('GETDEL', key))
                held, bytes, moved = held + 1, bytes + length, moved + 1
                is_busy = true
                break
            end
        end
    end
    turns = turns + 1
end
return answer(0)
