-- Runs commands one after the other, if all conditions hold.
-- ARGV  1 number of conditions, then per condition: '=' or '<', a value, and the command whose answer is or is less than
--       that ('' for none); then the commands. A command is the number of its parts, and its parts.
-- Returns the answers of the commands, or the number of the first condition that does not hold. A refused command does
-- not stop those behind it.
local i = 2

local function run(call)
    local last = i + tonumber(ARGV[i])
    local answer = call(unpack(ARGV, i + 1, last))
    i = last + 1
    return answer
end

for condition = 1, tonumber(ARGV[1]) do
    local operator, value = ARGV[i], ARGV[i + 1]
    i = i + 2
    local answer = run(redis.call) or ''
    if operator == '=' and tostring(answer) ~= value or operator == '<' and answer >= tonumber(value) then
        return condition
    end
end
local answers = {}
while i <= #ARGV do
    answers[#answers + 1] = run(redis.pcall)
end
return answers
