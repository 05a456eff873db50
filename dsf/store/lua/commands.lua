-- Runs commands one after the other.
-- ARGV  per command: the number of its parts, its parts
-- Returns their answers; a refused command does not stop those behind it.
local answers, i = {}, 1
while i <= #ARGV do
    local last = i + tonumber(ARGV[i])
    answers[#answers + 1] = redis.pcall(unpack(ARGV, i + 1, last))
    i = last + 1
end
return answers
