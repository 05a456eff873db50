-- Runs commands in order if all conditions hold.
-- ARGV  1 number of conditions, then for each condition '=' or '<', a value, and a command whose response must be equal
--       to or less than the value (no response counts as ''); then the commands. A command is the number of its parts,
--       followed by the parts.
-- Returns the responses to the commands, or the number of the first condition that does not hold. An error of a command
-- does not stop the later ones.
local i = 2

local function run(call)
    local last = i + tonumber(ARGV[i])
    local response = call(unpack(ARGV, i + 1, last))
    i = last + 1
    return response
end

for condition = 1, tonumber(ARGV[1]) do
    local operator, value = ARGV[i], ARGV[i + 1]
    i = i + 2
    local response = run(redis.call) or ''
    if operator == '=' and tostring(response) ~= value or operator == '<' and response >= tonumber(value) then
        return condition
    end
end
local responses = {}
while i <= #ARGV do
    responses[#responses + 1] = run(redis.pcall)
end
return responses
