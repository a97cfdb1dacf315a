-- Stands in for slurmctld: loads the hook, then answers one request per line of standard input.
--   hints HEX                the hints in a comment
--   call NAME ARGUMENTS      slurm_job_submit or slurm_job_modify; ARGUMENTS is a Lua table {job_desc, ...}
-- An answer is `name=hex` words on one line, sorted. Arguments: the hook's file, and the configuration it shall read.

local said = {}

slurm = { SUCCESS = 0, ERROR = -1, NO_VAL = 4294967294 }

function slurm.log_user(...)
    said[#said + 1] = string.format(...)
end

slurm.log_error = slurm.log_user

local hook = dofile(arg[1])
hook.conf = arg[2]

local function hex(value)
    return (tostring(value):gsub(".", function(byte) return ("%02x"):format(byte:byte()) end))
end

local function unhex(text)
    return (text:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end))
end

local function answer(fields)
    local words = {}
    for name, value in pairs(fields) do
        words[#words + 1] = name .. "=" .. hex(value)
    end
    table.sort(words)
    io.write(table.concat(words, " "), "\n")
    io.flush()
end

local function plain(number) -- 5.3 and later tell 60 and 60.0 apart
    return type(number) == "number" and ("%d"):format(number) or number
end

for line in io.lines() do
    local verb, rest = line:match("^(%w+) ?(.*)$")
    if verb == "hints" then
        local hints = hook.parse(unhex(rest))
        hints.problems = table.concat(hints.problems, "\n")
        hints.lead, hints.duration = plain(hints.lead), plain(hints.duration)
        answer(hints)
    else
        local name, arguments = rest:match("^([%w_]+) (.*)$")
        said = {}
        local given = (loadstring or load)("return " .. arguments)()
        local code = _G[name]((unpack or table.unpack)(given, 1, 4))
        answer({
            code = code,
            comment = type(rawget(given[1], "comment")) == "string" and given[1].comment or nil,
            priority = plain(rawget(given[1], "priority")),
            begin_time = plain(rawget(given[1], "begin_time")),
            said = table.concat(said, "\n"),
        })
    end
end
