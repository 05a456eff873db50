-- Records why scores are not written, and notifies readers of the pairs whose cause has changed.
-- KEYS  1 unwritten
-- ARGV  two per pair: pair | JSON of the cause, '' if the score is written
for i = 1, #ARGV, 2 do
    local pair, cause = ARGV[i], ARGV[i + 1]
    local changed
    if cause == '' then
        changed = redis.call('HDEL', KEYS[1], pair) == 1
    else
        changed = redis.call('HGET', KEYS[1], pair) ~= cause
        redis.call('HSET', KEYS[1], pair, cause)
    end
    if changed then
        note_change(pair)
    end
end
publish_changes()
return 'OK'
