-- Runs commands one after the other.
-- ARGV  per command: the number of its parts, its parts
-- Returns their answers.
local answers, i = {}, 1
while i <= #ARGV do
    local last = i + tonumber(ARGV[i])
    answers[#answers + 1] = redis.call(unpack(ARGV, i + 1, last))
    i = last + 1
end
return answers
