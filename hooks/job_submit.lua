--[[
Slurm's side of slurmsched: reads hints at submission and holds managed jobs for the next round.

    JobSubmitPlugins=lua                        in slurm.conf, and this file as job_submit.lua beside it

or, where the site has its own job_submit.lua, at the top of that file and in its two functions:

    local synsched = dofile("/etc/synsched/job_submit.lua")
    function slurm_job_submit(job_desc, part_list, submit_uid)
        synsched.submit(job_desc, part_list, submit_uid)
        ...
    function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
        synsched.modify(job_desc, job_rec, part_list, modify_uid)
        ...

A wrong hint is told to the person who submits; the job is accepted as if the hint had not been given. A job is held
only while the daemon is alive and enforcing. Whatever fails here, the job passes as if this file were not there.
Runs in Lua 5.1 to 5.4 and on Slurm 22.05 and later; a field that a release does not have reads as nil.
]]

local hook = { conf = "/etc/synsched/hook.conf" }

-- What counts where neither that file nor the heartbeat says otherwise: the defaults of the settings.
local DEFAULTS = {
    heartbeat = "/var/lib/synsched/heartbeat",
    stale_after = "900",
    disable_file = "/etc/synsched/disable",
    parts = "no",
    opt_in = "yes",
}

local PREFIX, LONGEST, SHOWN = "synsched:", 256, 24
local MARK = "held=hook"
local LONGEST_COMMENT = 1000 -- slurmctld refuses a job with more than 1024

-- The grammar of slurmsched/model/hints.py; a test holds the two against each other. ---------------------------------

local UNITS = { [""] = 1, s = 1, m = 60, h = 3600, d = 86400 }
local SIGNALS = { none = true, usr1 = true, usr2 = true, term = true, int = true, hup = true }

-- What Python's str.split() calls white space beside the ASCII blanks, in UTF-8.
local WIDE_BLANKS = {
    "[\28-\31]", "\194[\133\160]", "\225\154\128", "\226\128[\128-\138\168\169\175]", "\226\129\159", "\227\128\128",
}

local function characters(text)
    return select(2, text:gsub("[^\128-\191]", ""))
end

local function as_blanks(found)
    return (" "):rep(#found)
end

-- First and last byte of the comment's hint word, nil where it has none.
local function hint_word(comment)
    local spaced = comment
    for _, blank in ipairs(WIDE_BLANKS) do
        spaced = spaced:gsub(blank, as_blanks)
    end
    for first, word, after in spaced:gmatch("()([^ \t\n\v\f\r]+)()") do
        if word:sub(1, #PREFIX) == PREFIX then
            return first, after - 1
        end
    end
end

-- Untrusted text, safe to print in one line.
local function shown(text)
    local clean, count = {}, 0
    for character in text:gmatch("[^\128-\191][\128-\191]*") do
        count = count + 1
        if count <= SHOWN then
            clean[count] = character:match("^[ -~]$") or "?"
        end
    end
    return "'" .. table.concat(clean) .. "'" .. (count > SHOWN and "..." or "")
end

local function seconds(text)
    local digits, unit = text:match("^([0-9]+)([smhd]?)$")
    return digits and #digits <= 7 and tonumber(digits) * UNITS[unit] or nil
end

local function is_name(text)
    return #text <= 64 and text:match("^[a-z0-9][a-z0-9_.+%-]*$") ~= nil
end

-- In the order in which they are listed to people: key, form, and what a right value adds to the hints.
local KEYS = {
    { "model", "a name such as resnet50", function(value)
        return is_name(value) and { model = value }
    end },
    { "task", "image, language, speech or another profiled task", function(value)
        return is_name(value) and { task = value }
    end },
    { "ckpt", "usr1, usr2, term, int, hup or none, with @TIME for its lead, as usr1@60", function(value)
        local signal, at, time = value:match("^([^@]*)(@?)(.*)$")
        local lead = seconds(time)
        return SIGNALS[signal] and (at == "" or lead) and { checkpoint = signal, lead = lead }
    end },
    { "duration", "a time such as 90m or 2h", function(value)
        return (seconds(value) or 0) > 0 and { duration = seconds(value) }
    end },
    { "move", "yes or no", function(value)
        return (value == "yes" or value == "no") and { move = value }
    end },
    { "pack", "yes or no", function(value)
        return (value == "yes" or value == "no") and { pack = value }
    end },
    { "mem", "tune or keep", function(value)
        return (value == "tune" or value == "keep") and { memory_tunable = value == "tune" }
    end },
    { "fork", "the steps of the whole job, as 50000", function(value)
        return #value <= 12 and value:match("^[1-9][0-9]*$") and { fork = value }
    end },
    { "held", "hook", function(value)
        return value == "hook" and { held_by_hook = true }
    end },
}

local FORMS, READERS, NAMES = {}, {}, {}
for position, known in ipairs(KEYS) do
    NAMES[position], FORMS[known[1]], READERS[known[1]] = known[1], known[2], known[3]
end

-- What is wrong with one `key=value`, nil when it was right and is now in `hints`.
local function read_item(item, hints, seen)
    local key, equals, value = item:match("^([^=]*)(=?)(.*)$")
    if not FORMS[key] then
        return "unknown hint " .. shown(key) .. ": known are " .. table.concat(NAMES, ", ")
    elseif equals == "" or value == "" then
        return "hint " .. key .. " has no value: write " .. key .. "=" .. FORMS[key]
    elseif seen[key] then
        return "hint " .. key .. " given twice: the first counts"
    end
    seen[key] = true
    local said = READERS[key](value)
    for name, told in pairs(said or {}) do
        hints[name] = told
    end
    return not said and "hint " .. key .. "=" .. shown(value) .. ": expected " .. FORMS[key] or nil
end

-- The hints in a comment, nil values for what was not said; `problems` is a list of sentences.
function hook.parse(comment)
    local first, last = hint_word(comment)
    local hints = { given = first ~= nil, problems = {} }
    if not first then
        return hints
    end
    local word = comment:sub(first, last)
    if characters(word) > LONGEST then
        hints.problems = { "hint longer than " .. LONGEST .. " characters: ignored" }
        return hints
    end
    local seen = {}
    for item in (word:sub(#PREFIX + 1) .. ","):gmatch("([^,]*),") do
        if item ~= "" then
            hints.problems[#hints.problems + 1] = read_item(item, hints, seen)
        end
    end
    return hints
end

-- The mark in the comment that says whose hold it is. -----------------------------------------------------------------

-- The comment without anybody's `held=`; a hint word stays, since it may be what opts the job in.
function hook.unmarked(comment)
    local first, last = hint_word(comment)
    if not first then
        return comment
    end
    local kept = {}
    for item in (comment:sub(first + #PREFIX, last) .. ","):gmatch("([^,]*),") do
        if item:match("^[^=]*") ~= "held" then
            kept[#kept + 1] = item
        end
    end
    return comment:sub(1, first - 1) .. PREFIX .. table.concat(kept, ",") .. comment:sub(last + 1)
end

-- The comment with our mark; nil where it would grow so long that the hints, or the job, would be refused.
function hook.marked(comment)
    local first, last = hint_word(comment)
    if not first then
        comment = comment .. (comment == "" and "" or " ") .. PREFIX
        first, last = #comment - #PREFIX + 1, #comment
    end
    local word = comment:sub(first, last)
    local with_mark = word .. (word == PREFIX and "" or ",") .. MARK
    local result = comment:sub(1, first - 1) .. with_mark .. comment:sub(last + 1)
    return characters(with_mark) <= LONGEST and #result <= LONGEST_COMMENT and result or nil
end

-- Which jobs are held. --------------------------------------------------------------------------------------------

local function set_of(names)
    local set = {}
    for name in (names or ""):gmatch("[^,%s]+") do
        set[name] = true
    end
    return set
end

local function read_start(path)
    local file = path and io.open(path, "r")
    if not file then
        return nil
    end
    local text = file:read(8192)
    file:close()
    return text
end

local function exists(path)
    if not path or path == "" then
        return false
    end
    local file, _, code = io.open(path, "r")
    if file then
        file:close()
    end
    return file ~= nil or code ~= 2 -- ENOENT; a file that we may not look at may be there
end

-- The `key = value` lines of a text, over what is known already.
local function over(known, text)
    local conf = {}
    for key, value in pairs(known) do
        conf[key] = value
    end
    for line in (text or ""):gmatch("[^\r\n]+") do
        local key, value = line:match("^%s*([%w_]+)%s*=%s*(.-)%s*$")
        if key then
            conf[key] = value
        end
    end
    return conf
end

-- What the living scheduler manages; nil while nobody schedules. The heartbeat's first line is `unix-time mode period`;
-- settings may follow it and then count, since they are those of the daemon that runs.
local function in_force()
    local installed = over(DEFAULTS, read_start(hook.conf))
    local heartbeat = read_start(installed.heartbeat) or ""
    local conf = over(installed, heartbeat)
    local at, mode = heartbeat:match("^([0-9.]+) (%l+) ")
    local age, longest = os.time() - (tonumber(at) or 0), tonumber(conf.stale_after) or 0
    local alive = age <= longest and age >= -120 -- a clock may be a little off
    return mode == "enforce" and alive and not exists(conf.disable_file) and conf or nil
end

-- Whether the job is of a kind that is placed: of whole GPUs, or also of parts of one, or of none, where the system in
-- force places those too (`parts`).
local function placed(job_desc, parts)
    local gpus, shards = false, false
    for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres" }) do
        for item in tostring(job_desc[field] or ""):gmatch("[^,%s]+") do
            local name, rest = item:gsub("^gres[:/]", ""):match("^([%w_]+)(.*)$")
            gpus = gpus or (name == "gpu" and not rest:match("[:=]0+$"))
            shards = shards or name == "shard"
        end
    end
    return (gpus and not shards) or (parts and not (gpus and shards))
end

local function is_heterogeneous(job_desc)
    local offset = job_desc.het_job_offset
    return offset ~= nil and offset ~= slurm.NO_VAL
end

local function partitions_of(job_desc, part_list)
    if job_desc.partition then
        return set_of(job_desc.partition)
    end
    local defaults = {}
    for name, partition in pairs(part_list or {}) do
        if partition.flag_default == 1 or partition.flag_default == true then
            defaults[name] = true
        end
    end
    return defaults
end

local function any_in(names, set)
    for name in pairs(names) do
        if set[name] then
            return true
        end
    end
    return false
end

-- As slurmsched/rounds/scope.py decides it, as far as it is known at submission.
local function managed(job_desc, part_list, conf, hints)
    local batch = job_desc.script ~= nil and job_desc.script ~= ""
    if not batch or is_heterogeneous(job_desc) or not placed(job_desc, conf.parts == "yes") then
        return false
    end
    local partitions = partitions_of(job_desc, part_list)
    if any_in(partitions, set_of(conf.never_partitions)) then
        return false
    end
    local qos = job_desc.qos or job_desc.default_qos or ""
    return any_in(partitions, set_of(conf.partitions))
        or set_of(conf.qos)[qos]
        or (conf.opt_in == "yes" and hints.given)
end

-- What Slurm calls. ------------------------------------------------------------------------------------------

local function tell(problems)
    for _, problem in ipairs(problems) do
        slurm.log_user("%s", "synsched: " .. problem .. " (the job runs as if it had not been given)")
    end
end

local function submit(job_desc, part_list)
    local given = job_desc.comment or ""
    local comment = hook.unmarked(given)
    local hints = hook.parse(comment)
    tell(hints.problems)
    local conf, mark = in_force(), hook.marked(comment)
    local held_by_owner = job_desc.priority == 0
    if conf and mark and not held_by_owner and managed(job_desc, part_list, conf, hints) then
        job_desc.comment = mark
        job_desc.priority = 0
    elseif comment ~= given then
        job_desc.comment = comment
    end
end

-- Only the owner's changes matter: an operator, and the scheduler itself, know what they do.
local function modify(job_desc, job_rec, _, modify_uid)
    if modify_uid ~= job_rec.user_id then
        return
    end
    local standing = job_rec.comment or ""
    local given = job_desc.comment or standing
    local comment = hook.unmarked(given)
    if job_desc.comment then
        tell(hook.parse(comment).problems)
    end
    local owner_holds = job_desc.priority == 0 -- from now on it is the owner's hold, not ours
    if not owner_holds and hook.parse(standing).held_by_hook then
        comment = hook.marked(comment)
        if not comment then
            comment = standing
            slurm.log_user("%s", "synsched: the comment is too long and stays as it was")
        end
    end
    if comment ~= given then
        job_desc.comment = comment
    end
end

-- Whatever goes wrong is logged, and the job passes.
local function failing_open(act)
    return function(...)
        local done, problem = pcall(act, ...)
        if not done then
            pcall(function()
                slurm.log_error("%s", "synsched: job_submit.lua: " .. tostring(problem))
            end)
        end
        return slurm.SUCCESS
    end
end

hook.submit, hook.modify = failing_open(submit), failing_open(modify)

slurm_job_submit, slurm_job_modify = hook.submit, hook.modify

return hook
