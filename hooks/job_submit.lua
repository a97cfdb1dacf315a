--[[
Slurm's side of slurmsched: reads hints at submission and holds managed jobs for the next round.

    JobSubmitPlugins=lua                        in slurm.conf, and this file as job_submit.lua beside it

or, where the site has its own job_submit.lua, at the top of that file and in its two functions:

    local synsched = dofile("/etc/synsched/job_submit.lua")
    function slurm_job_submit(job_desc, part_list, submit_uid)
        local code = synsched.submit(job_desc, part_list, submit_uid)
        if code ~= slurm.SUCCESS then return code end
        ...
    function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
        local code = synsched.modify(job_desc, job_rec, part_list, modify_uid)
        if code ~= slurm.SUCCESS then return code end
        ...

A wrong hint is told to the person who submits; the job is accepted as if the hint had not been given. A job is held
only while the daemon is alive and enforcing; its owner cannot release it past the order of the others then.

Refused, while the daemon is alive, are texts that pose as other jobs or other fields in Slurm's listings, and managed
jobs whose comment has no room for our mark. What fails in reading a job or the configuration lets the job pass as if
this file were not there: that does not depend on what an owner wrote. What fails in judging an owner's text, while the
daemon enforces, refuses that job: nobody gets past the hold by a text that breaks this file.

Texts are looked at up to LONGEST_TEXT bytes, and every pattern is linear. All is in one file, as Slurm
loads one.
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
    trusted = "0",
}

local PREFIX, LONGEST, SHOWN = "synsched:", 256, 24
local MARK = "held=hook"
local IS_MARK = { held = true, left = true } -- keys that this file alone writes
local LONGEST_COMMENT = 1000 -- what we make of a comment
local SLURMS_LONGEST = 1024 -- slurmctld refuses a job with a longer comment
local LONGEST_TEXT = 4096 -- bytes of each text that are looked at; only arguments may be longer
local AHEAD = 120 -- seconds that a clock may be off: a sign of life from further in the future is none
local ACCESS_DENIED = 2002 -- ESLURM_ACCESS_DENIED
local NO_VAL16 = 65534 -- "not given" in Slurm's fields of 16 bits

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

-- First and last byte of the comment's hint word, nil where it has none, and the word behind it.
local function hint_word(comment)
    local spaced, first, last = comment, nil, nil
    for _, blank in ipairs(WIDE_BLANKS) do
        spaced = spaced:gsub(blank, as_blanks)
    end
    for start, word, after in spaced:gmatch("()([^ \t\n\v\f\r]+)()") do
        if first then
            return first, last, word
        elseif word:sub(1, #PREFIX):lower() == PREFIX then
            first, last = start, after - 1
        end
    end
    return first, last
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

-- `90`, `5m`, or as sbatch's --time has it with a colon or days: `2:00:00`, `1-12`.
local function seconds(text)
    local digits, unit = text:match("^([0-9]+)([smhd]?)$")
    if digits then
        return #digits <= 7 and tonumber(digits) * UNITS[unit] or nil
    end
    local days, clock = text:match("^([0-9]+)%-(.*)$")
    local first, rest = (clock or text):match("^([0-9]+)(.*)$")
    local second, third = (rest or ""):match("^:([0-9][0-9]?)$"), nil
    if not second then
        second, third = (rest or ""):match("^:([0-9][0-9]?):([0-9][0-9]?)$")
    end
    if not first or #first > 7 or #(days or "") > 5 or (rest ~= "" and not second) then
        return nil
    end
    local hours, minutes, after = first, second, third
    if not days and not third then
        hours, minutes, after = 0, first, second
    end
    return ((tonumber(days or 0) * 24 + tonumber(hours)) * 60 + tonumber(minutes or 0)) * 60 + tonumber(after or 0)
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
        local signal, at, time = value:gsub("^sig", ""):match("^([^@]*)(@?)(.*)$")
        local lead = seconds(time)
        return SIGNALS[signal] and (at == "" or lead) and { checkpoint = signal, lead = lead }
    end },
    { "duration", "a time such as 90m, 2h or 2:00:00", function(value)
        return (seconds(value) or 0) > 0 and { duration = seconds(value) }
    end },
    { "move", "yes or no", function(value)
        return (value == "yes" or value == "no") and { move = value }
    end },
    { "pack", "yes or no", function(value)
        return (value == "yes" or value == "no") and { pack = value }
    end },
    { "gpumem", "the memory that it uses of a GPU, as 12g or 9000m", function(value)
        local digits, unit = value:match("^([1-9][0-9]*)([mg])$")
        return digits and #digits <= 7 and { gpu_memory = tonumber(digits) * (unit == "g" and 1024 or 1) }
    end },
    { "mem", "tune or keep", function(value)
        return (value == "tune" or value == "keep") and { memory_tunable = value == "tune" }
    end },
    { "cpus", "tune, keep or probe", function(value)
        return value == "probe" and { cpus_probed = true } or (value == "tune" or value == "keep") and { cpus_tunable = value == "tune" }
    end },
    { "fork", "the steps of the whole job, as 50000", function(value)
        return #value <= 12 and value:match("^[1-9][0-9]*$") and { fork = value }
    end },
    { "idle", "last", function(value)
        return value == "last" and { idle_last = true }
    end },
    { "held", "hook", function(value)
        return value == "hook" and { held_by_hook = true }
    end },
    { "left", "an option of sbatch", function(value)
        return is_name(value) and { left = value }
    end },
}

local FORMS, READERS, NAMES = {}, {}, {}
for position, known in ipairs(KEYS) do
    NAMES[position], FORMS[known[1]], READERS[known[1]] = known[1], known[2], known[3]
end

-- What is wrong with one `key=value`, nil when it was right and is now in `hints`.
local function read_item(item, hints, seen)
    local given, equals, value = item:match("^([^=]*)(=?)(.*)$")
    local key = given:lower()
    if not FORMS[key] then
        return "unknown hint " .. shown(given) .. ": known are " .. table.concat(NAMES, ", ")
    elseif equals == "" or value == "" then
        return "hint " .. key .. " has no value: write " .. key .. "=" .. FORMS[key]
    elseif seen[key] then
        return "hint " .. key .. " given twice: the first counts"
    end
    seen[key] = true
    local said = READERS[key](value:lower())
    for name, told in pairs(said or {}) do
        hints[name] = told
    end
    return not said and "hint " .. key .. "=" .. shown(value) .. ": expected " .. FORMS[key] or nil
end

local function looks_like_hint(word)
    local key = word:match("^,*([^=]*)=")
    key = key and key:lower()
    return key and FORMS[key] and not IS_MARK[key]
end

-- The hints in a comment, nil values for what was not said; `problems` is a list of sentences.
function hook.parse(comment)
    local first, last, behind = hint_word(comment)
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
    hints.marks_only = true
    for item in (word:sub(#PREFIX + 1) .. ","):gmatch("([^,]*),") do
        hints.marks_only = hints.marks_only and IS_MARK[item:match("^[^=]*"):lower()] or nil
        if item ~= "" then
            hints.problems[#hints.problems + 1] = read_item(item, hints, seen)
        end
    end
    if behind and looks_like_hint(behind) then
        hints.problems[#hints.problems + 1] = "hint " .. shown(behind)
            .. " stands behind a blank: write commas between hints, and no blanks"
    end
    return hints
end

-- Whether its owner asks with the comment for the job to be managed.
function hook.opts_in(comment)
    local hints = hook.parse(comment)
    return hints.given and not hints.marks_only
end

-- The marks in the comment that say whose hold it is, or why there is none. ----------------------------------------------

-- The comment without anybody's `held=` and `left=`, and whether its hint word had nothing else. The word stays, since it
-- may be what opts the job in.
function hook.unmarked(comment)
    local first, last = hint_word(comment)
    if not first then
        return comment
    end
    local kept = {}
    for item in (comment:sub(first + #PREFIX, last) .. ","):gmatch("([^,]*),") do
        if not IS_MARK[item:match("^[^=]*"):lower()] then
            kept[#kept + 1] = item
        end
    end
    return comment:sub(1, first - 1) .. PREFIX .. table.concat(kept, ",") .. comment:sub(last + 1), #kept == 0
end

-- The comment with our mark; nil where it would grow so long that the hints, or the job, would be refused. A comma tells
-- a bare word of the owner, who opts in with it, from one that is `ours`.
function hook.marked(comment, mark, ours)
    local first, last = hint_word(comment)
    if not first then
        ours = true
        comment = comment .. (comment == "" and "" or " ") .. PREFIX
        first, last = #comment - #PREFIX + 1, #comment
    end
    local word = comment:sub(first, last)
    local with_mark = word .. (#word == #PREFIX and ours and "" or ",") .. (mark or MARK)
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
    local text = file:read(65536)
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

-- What the living scheduler goes by; nil while nobody schedules. The heartbeat's first line is `unix-time mode period`;
-- settings may follow it and then count, since they are those of the daemon that runs.
local function living()
    local installed = over(DEFAULTS, read_start(hook.conf))
    local heartbeat = read_start(installed.heartbeat) or ""
    local conf = over(installed, heartbeat)
    local at, mode, period = heartbeat:match("^([0-9.]+) (%l+) ([0-9]+)")
    local age, longest = os.time() - (tonumber(at) or 0), tonumber(conf.stale_after) or 0
    local alive = mode and mode ~= "paused" and mode ~= "stopped" and age <= longest and age >= -AHEAD
    if not alive or exists(conf.disable_file) then
        return nil
    end
    conf.enforces = mode == "enforce"
    conf.period = tonumber(period)
    conf.trusted = set_of(installed.trusted .. "," .. conf.trusted)
    return conf
end

-- Whether a user may always change his own jobs: root, SlurmUser (who runs this) and those that the daemon or hook.conf
-- names. Jobs of others they may change anyway.
local function is_trusted(uid, conf)
    local own = (read_start("/proc/self/status") or ""):match("\nUid:%s+%d+%s+(%d+)")
    return conf.trusted[tostring(uid)] or tostring(uid) == own
end

-- Whether the job is of a kind that is placed: of whole GPUs, or also of parts of one, or of none, where the system in
-- force places those too (`parts`). None of a device (`shard:0`) is as if it were not named. What Slurm derives from
-- other options (`derived`) counts where none is named.
local function placed(job, parts)
    local gpus, shards = false, false
    local function look(text)
        for item in (text or ""):gmatch("[^,%s]+") do
            local name, rest = item:gsub("^gres[:/]", ""):match("^([%w_]+)(.*)$")
            local some = not (rest or ""):match("[:=]0+$")
            gpus = gpus or (name == "gpu" and some)
            shards = shards or (name == "shard" and some)
        end
    end
    for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres" }) do
        look(job[field])
    end
    if not gpus and not shards then
        look(job.derived)
    end
    return (gpus and not shards) or (parts and not (gpus and shards))
end

local function default_partitions(part_list)
    local defaults = {}
    for name, partition in pairs(part_list or {}) do
        if partition.flag_default == 1 or partition.flag_default == true then
            defaults[#defaults + 1] = name
        end
    end
    return table.concat(defaults, ",")
end

local function any_in(names, set)
    for name in pairs(names) do
        if set[name] then
            return true
        end
    end
    return false
end

local function all_in(names, set)
    for name in pairs(names) do
        if not set[name] then
            return false
        end
    end
    return true
end

-- As slurmsched/rounds/scope.py decides it, as far as the hook can know it.
local function managed(job, conf)
    if not job.batch or job.heterogeneous or not placed(job, conf.parts == "yes") then
        return false
    end
    local partitions = set_of(job.partition)
    if next(partitions) and all_in(partitions, set_of(conf.never_partitions)) then
        return false
    end
    return any_in(partitions, set_of(conf.partitions))
        or set_of(conf.qos)[job.qos or ""]
        or (conf.opt_in == "yes" and hook.opts_in(job.comment or ""))
end

-- Jobs that are left to plain Slurm. --------------------------------------------------------------------------------

-- A number that was given; the highest ones of 16, 32 and 64 bits stand for none.
local function number(value)
    local known = tonumber(value)
    return known and known ~= NO_VAL16 and known ~= NO_VAL16 + 1 and known < slurm.NO_VAL and known or nil
end

local function given(value)
    return type(value) == "string" and value ~= "" or (number(value) or 0) ~= 0
end

local function has_bit(value, bit)
    return math.floor((tonumber(value) or 0) / bit) % 2 == 1
end

-- Devices are asked for in these fields; `gres` repeats one of the others.
local DEVICES = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }
local NO_DEVICES = { gpu = true, shard = true, cpu = true, mem = true, node = true, billing = true }

-- What a text such as `gres/gpu:v100:2,nic:1` asks for: a list of { name, type, count }.
local function devices_of(text)
    local list = {}
    for item in (text or ""):gmatch("[^,%s]+") do
        local name, rest = item:gsub("^gres[:/]", ""):match("^([%w_]+)(.*)$")
        local kind, count = (rest or ""):match("^[:/]?(.-)[:=]?(%d*)$")
        kind = (kind or ""):gsub("[:=]$", "")
        list[#list + 1] = { name or item, kind, tonumber(count) or 1 }
    end
    return list
end

local function asks_for_several_types(job)
    for _, field in ipairs(DEVICES) do
        local types = 0
        for _, device in ipairs(devices_of(job[field])) do
            types = types + (device[1] == "gpu" and device[3] > 0 and 1 or 0)
        end
        if types > 1 then
            return true
        end
    end
end

local function asks_for_other_devices(job)
    for _, field in ipairs(DEVICES) do
        for _, device in ipairs(devices_of(job[field])) do
            if not NO_DEVICES[device[1]] and device[3] > 0 then
                return true
            end
        end
    end
end

-- Whether the first of two numbers is given and is more than the second, which is given too.
local function exceeds(asked, most)
    return number(asked) ~= nil and number(most) ~= nil and number(asked) > number(most)
end

-- As `unplannable_reason` in slurmsched/policies/cluster/gang.py.
local function asks_for_gpus_on_each_of_some_nodes(job)
    local fewest, on_each = number(job.min_nodes) or 1, false
    for _, device in ipairs(devices_of(job.tres_per_node)) do
        on_each = on_each or device[1] == "gpu" and device[3] > 0
    end
    return on_each and exceeds(job.max_nodes, fewest) and (number(job.num_tasks) or 1) <= fewest
end

-- Options of sbatch, why a job with one is let go, and how it is seen: a field that is given, or a function. The words
-- are those of sbatch_options.toml in slurmsched/backends/slurm, and a test holds the two against each other. Those that
-- squeue does not show have a mark for the comment.
local LET_GO = {
    { "--gpus-per-socket", "it asks for GPUs per socket (--gpus-per-socket)", "tres_per_socket" },
    { "--gpus=type,type", "it asks for GPUs of several types", asks_for_several_types },
    { "--gres=other", "it asks for devices other than GPUs (--gres)", asks_for_other_devices },
    { "--gres-flags=enforce-binding", "its CPUs must be near its GPUs (--gres-flags=enforce-binding)", function(job)
        return has_bit(job.bitflags, 16)
    end, "gres-flags" },
    { "--tres-per-task=shards",
        "its tasks ask for shards that Slurm may take from several GPUs (--gres-flags=one-task-per-sharing)",
        function(job)
            return has_bit(job.bitflags, 2 ^ 38)
        end },
    { "--licenses", "it needs licences (--licenses)", "licenses" },
    { "--bb", "it uses a burst buffer (--bb)", "burst_buffer" },
    { "--tmp", "it asks for temporary disk space (--tmp)", "pn_min_tmp_disk" },
    { "--mincpus=more", "it asks for more CPUs on a node than its tasks use (--mincpus)", function(job)
        return exceeds((number(job.pn_min_cpus) or 0) * (number(job.min_nodes) or 1), job.min_cpus)
    end },
    { "--ntasks-per-core", "it limits the tasks on a core (--ntasks-per-core)", "ntasks_per_core" },
    { "--ntasks-per-node=other", "its number of tasks is not what its nodes have at --ntasks-per-node each", function(job)
        local each, tasks = number(job.ntasks_per_node), number(job.num_tasks)
        return each ~= nil and tasks ~= nil and tasks ~= each * (number(job.min_nodes) or math.ceil(tasks / each))
    end },
    { "--ntasks-per-gpu", "it asks for tasks per GPU (--ntasks-per-gpu)", "ntasks_per_gpu", "ntasks-per-gpu" },
    { "--ntasks-per-socket", "it limits the tasks on a socket (--ntasks-per-socket)", "ntasks_per_socket" },
    { "--sockets-per-node",
        "it asks for nodes with certain sockets and cores (--sockets-per-node, --cores-per-socket or -B)",
        function(job)
            return given(job.sockets_per_node) or given(job.cores_per_socket)
        end },
    { "--overcommit", "it has more tasks than CPUs (--overcommit)", function(job)
        return exceeds(job.num_tasks, job.min_cpus)
    end },
    { "--nodes=range", "it asks for GPUs on each node of a range (--nodes), so Slurm chooses how many nodes",
        asks_for_gpus_on_each_of_some_nodes, "nodes" },
    { "--oversubscribe", "it may share its CPUs with other jobs (--oversubscribe, or OverSubscribe=FORCE)", function(job)
        return number(job.shared) == 1
    end },
    { "--core-spec", "it sets cores or threads aside for the system (--core-spec, --thread-spec)", "core_spec" },
    { "--prefer", "it prefers nodes with certain features (--prefer)", "prefer" },
    { "--batch", "its script must run on certain nodes (--batch)", "batch_features", "batch" },
    { "--exclusive=user", "it shares its nodes with certain jobs only (--exclusive=user, mcs or topo)", function(job)
        return (number(job.shared) or 0) >= 2
    end },
    { "--contiguous", "its nodes must be beside each other (--contiguous)", "contiguous" },
    { "--switches", "its nodes must be on few switches (--switches)", "req_switch" },
    { "--segment", "its nodes must be in blocks (--segment)", "segment_size" },
    { "--spread-job", "it is to be spread over many nodes (--spread-job)", function(job)
        return has_bit(job.bitflags, 256)
    end, "spread-job" },
    { "--extra", "the site may choose its nodes by --extra", "extra", "extra" },
    { "--reboot", "its nodes are restarted before it starts (--reboot)", "reboot" },
    { "--time-min", "its time may be shortened (--time-min)", "time_min" },
    { "--reservation=one,two", "it may use several reservations (--reservation)", function(job)
        return (job.reservation or ""):find(",") ~= nil
    end },
}

-- Why the job is left to plain Slurm, and the mark that says so; nil for a job that can be managed.
local function let_go(job)
    for _, row in ipairs(LET_GO) do
        local seen = row[3]
        if type(seen) == "string" and given(job[seen]) or type(seen) == "function" and seen(job) then
            return row[2], row[4]
        end
    end
end

-- The totals of the partitions as the daemon writes them into its heartbeat, by partition:
-- `largest = NAME=nodes,CPUs,most CPUs of a node,most MiB of a node,TYPE:most GPUs of a node:GPUs,... ...`
local function largest(conf)
    local totals = {}
    local one = "(%S+)=(%d+),(%d+),(%d+),(%d+)(%S*)"
    for name, nodes, cpus, node_cpus, memory, gpus in (conf.largest or ""):gmatch(one) do
        local known = {
            nodes = tonumber(nodes), cpus = tonumber(cpus), node_cpus = tonumber(node_cpus), memory = tonumber(memory),
            on_node = {}, in_all = {},
        }
        for kind, most, all in gpus:gmatch(",([^:,]*):(%d+):(%d+)") do
            known.on_node[kind], known.in_all[kind] = tonumber(most), tonumber(all)
        end
        totals[name] = known
    end
    return totals
end

local function counted(amount, noun)
    return ("%d %s%s"):format(amount, noun, amount == 1 and "" or "s")
end

-- What the job asks for beyond this partition; nil where it may fit. In the words of slurmsched/rounds/scope.py.
local function excess(job, most)
    local nodes, tasks = number(job.min_nodes) or 1, number(job.num_tasks) or 1
    local spread = number(job.max_nodes) or most.nodes
    if nodes > most.nodes then
        return ("%s; the partition has %d"):format(counted(nodes, "node"), most.nodes)
    end
    for field, times in pairs({ tres_per_job = 1, tres_per_node = nodes, tres_per_task = tasks }) do
        for _, device in ipairs(devices_of(job[field])) do
            local kind, count = device[2], device[3]
            local noun = (kind == "" and "" or kind .. " ") .. "GPU"
            local on_node = field == "tres_per_node" and count or math.max(
                field == "tres_per_task" and count or 1, math.ceil(count * times / spread))
            if device[1] == "gpu" and count * times > (most.in_all[kind] or 0) then
                return ("%s; the partition has %d"):format(counted(count * times, noun), most.in_all[kind] or 0)
            elseif device[1] == "gpu" and on_node > (most.on_node[kind] or 0) then
                return ("%s on one node; the largest has %d"):format(counted(on_node, noun), most.on_node[kind] or 0)
            end
        end
    end
    local each_task = number(job.cpus_per_task) or 1
    local cpus = math.max(
        each_task * (number(job.ntasks_per_node) or 1), number(job.pn_min_cpus) or 1,
        math.ceil((number(job.min_cpus) or 1) / spread))
    if (number(job.min_cpus) or 1) > most.cpus then
        return ("%s; the partition has %d"):format(counted(number(job.min_cpus), "CPU"), most.cpus)
    elseif cpus > most.node_cpus then
        return ("%s on one node; the largest has %d"):format(counted(cpus, "CPU"), most.node_cpus)
    end
    local memory = tonumber(job.min_mem_per_node) or (tonumber(job.min_mem_per_cpu) or 0) * cpus
    if memory > most.memory and memory < 2 ^ 62 then
        return ("%d MiB of memory on one node; the largest has %d"):format(memory, most.memory)
    end
end

-- What the job asks for beyond every partition that it names; nil where it may fit one, or one is not known.
local function beyond(job, conf)
    local totals, what = largest(conf), nil
    for name in pairs(set_of(job.partition)) do
        what = totals[name] and excess(job, totals[name])
        if not what then
            return nil
        end
    end
    return what
end

-- Texts that pose as something else in Slurm's listings. -------------------------------------------------------------

local WRITTEN = {
    "name", "comment", "network", "mail_user", "work_dir", "std_in", "std_out", "std_err", "features", "prefer",
    "wckey", "licenses", "reservation", "account", "extra", "container",
}

-- Fields where ` Key=` is refused, and the keys: names that only Slurm's listings use, so that an ordinary comment such
-- as `lr=0.1 Epochs=3 Nodes=4` passes. Paths and features may have any words.
local POSING = { name = true, comment = true, network = true, mail_user = true, wckey = true, extra = true }
local KEYS_OF_SLURM = set_of([[
    JobId JobState UserId GroupId ArrayJobId ArrayTaskId HetJobId HetJobOffset ReqTRES AllocTRES TresPerJob TresPerNode
    TresPerSocket TresPerTask CpusPerTres MemPerTres MinCPUsNode MinMemoryNode MinMemoryCPU CPU_IDs NodeList ReqNodeList
    ExcNodeList AllocNode SubmitTime EligibleTime SubmitLine AdminComment
]])

-- Control characters but the tab, those of Unicode and its line and paragraph separators, in UTF-8.
local CONTROLS = { "[\1-\8\10-\31\127]", "\194[\128-\159]", "\226\128[\168\169]" }

-- Why a text is refused; nil where it may pass.
local function posing(field, text)
    if #text > LONGEST_TEXT then
        return "is longer than " .. LONGEST_TEXT .. " bytes"
    end
    for _, control in ipairs(CONTROLS) do
        if text:find(control) then
            return "has a line break or another control character"
        end
    end
    if POSING[field] then
        for key in text:gmatch("[ \t]([%a_]+)[:=]") do
            if KEYS_OF_SLURM[key] then
                return "has '" .. key .. "=', which is how Slurm lists a field of its own"
            end
        end
    end
end

local function refused_text(job)
    for _, field in ipairs(WRITTEN) do
        local why = job[field] and posing(field, job[field])
        if why then
            return "the job's " .. field .. " " .. why .. ": submit it without"
        end
    end
    for _, argument in ipairs(job.arguments or {}) do
        if argument:find("[\n\r]%s*JobId=") then
            return "an argument of the script has a line that begins with JobId=: pass it in a file"
        end
    end
end

-- What Slurm calls. ------------------------------------------------------------------------------------------

local READ = {
    "comment", "partition", "qos", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres",
}

-- What a job asks for, beside the texts of READ that say it. What an update does not give is nil, or one of Slurm's
-- numbers for it, of 16, 32 and 64 bits.
local REQUESTED = {
    "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres", "features", "req_nodes", "exc_nodes",
    "min_nodes", "max_nodes", "num_tasks", "min_cpus", "cpus_per_task", "min_mem_per_node", "min_mem_per_cpu",
}
local NOT_GIVEN = 65534

-- The first LONGEST_TEXT bytes of a text, and one that tells whether there are more; nil where there is none.
local function text_of(value)
    return type(value) == "string" and value:sub(1, LONGEST_TEXT + 1) or nil
end

local function texts_of(source, fields, into)
    for _, field in ipairs(fields) do
        into[field] = text_of(source[field]) or into[field]
    end
    return into
end

local function arguments_of(source)
    local arguments = {}
    if type(source.argv) == "table" then
        for _, argument in pairs(source.argv) do
            arguments[#arguments + 1] = text_of(argument)
        end
    end
    return arguments
end

local function tell(sentence)
    slurm.log_user("%s", "synsched: " .. sentence)
end

local function tell_problems(problems)
    for _, problem in ipairs(problems) do
        tell(problem .. " (the job runs as if it had not been given)")
    end
end

-- The answer where an owner may not do what he asks.
local function refuse(why, code)
    tell(why)
    return code
end

local NO_ROOM = "the comment leaves no room for the mark of slurmsched: shorten it to 900 bytes, its hints to 240"
local WHOLE_NODES = "an exclusive job is given all GPUs of its nodes: ask for them, as with --gres=gpu:8, to be managed"
local LATER = "the next round decides when the job starts"

-- Beside READ and WRITTEN, what tells whether a job is left to plain Slurm.
local TEXTS = { "burst_buffer", "batch_features", "licenses", "prefer", "extra", "reservation" }
local NUMBERS = {
    "bitflags", "pn_min_tmp_disk", "pn_min_cpus", "min_cpus", "min_nodes", "max_nodes", "num_tasks", "cpus_per_task",
    "ntasks_per_core", "ntasks_per_gpu", "ntasks_per_node", "ntasks_per_socket", "sockets_per_node", "cores_per_socket",
    "core_spec", "shared", "contiguous", "req_switch", "segment_size", "reboot", "min_mem_per_node", "min_mem_per_cpu",
    "time_min",
}

-- A submission, read: plain texts and numbers, so that judging it cannot fail for what Slurm's fields are.
local function read_submission(job_desc, part_list)
    local job = texts_of(job_desc, WRITTEN, texts_of(job_desc, READ, texts_of(job_desc, TEXTS, {})))
    for _, field in ipairs(NUMBERS) do
        job[field] = tonumber(job_desc[field])
    end
    local script, offset = job_desc.script, job_desc.het_job_offset
    job.batch = script ~= nil and script ~= ""
    job.heterogeneous = offset ~= nil and offset ~= slurm.NO_VAL
    job.partition = job.partition or default_partitions(part_list)
    job.qos = job.qos or text_of(job_desc.default_qos)
    job.arguments = arguments_of(job_desc)
    local tasks_on_a_gpu = tonumber(job_desc.ntasks_per_tres) or NO_VAL16
    job.derived = tasks_on_a_gpu < NO_VAL16 and "gpu" or nil -- Slurm divides the tasks by it for the number of GPUs
    job.held_by_owner = job_desc.priority == 0
    job.exclusive = tonumber(job_desc.shared) == 0
    job.given = job.comment or ""
    return job
end

-- Whether Slurm would give the job GPUs of managed nodes though it names none: --exclusive takes all of a node's.
local function takes_whole_nodes(job, exclusive, conf)
    local partitions = set_of(job.partition)
    return exclusive
        and conf.enforces
        and not job.heterogeneous
        and not placed(job, false)
        and any_in(partitions, set_of(conf.partitions))
end

-- What 'synsched doctor' asks for: the sign of life as this host sees it.
local DOCTOR = PREFIX .. "doctor=1"
local function tell_heartbeat()
    local path = over(DEFAULTS, read_start(hook.conf)).heartbeat
    local at, mode = (read_start(path) or ""):match("^([0-9.]+) (%l+) [0-9]+")
    local found = at and ("has mode %s and is %d s old"):format(mode, math.floor(os.time() - tonumber(at)))
    tell("heartbeat " .. path .. " " .. (found or "is not there"))
end

-- What becomes of a submission: a code to refuse it with, or the comment and priority to set (nil: as it is).
local function judge_submission(job, conf)
    local why = conf and refused_text(job)
    if why then
        return refuse(why, slurm.ERROR)
    end
    if conf and not managed(job, conf) and takes_whole_nodes(job, job.exclusive, conf) then
        return refuse(WHOLE_NODES, slurm.ERROR)
    end
    if #job.given > SLURMS_LONGEST then
        return conf and conf.enforces and managed(job, conf) and refuse(NO_ROOM, slurm.ERROR) or nil
    end
    local comment, ours = hook.unmarked(job.given)
    job.comment = comment
    tell_problems(hook.parse(job.comment).problems)
    if job.given == DOCTOR then
        tell_heartbeat()
    end
    if conf and conf.enforces and not job.held_by_owner and managed(job, conf) then
        local why, option = let_go(job)
        local what = not why and beyond(job, conf)
        local mark = not what and hook.marked(job.comment, option and "left=" .. option, ours)
        if what then -- Slurm refuses it, if it is so: it does not look at what a held job asks for
            tell("the job asks for what the cluster does not have: " .. what)
        elseif why then
            tell("the job is left to Slurm: " .. why)
            job.comment = option and mark or job.comment
        elseif not mark then
            return refuse(NO_ROOM, slurm.ERROR)
        else
            return nil, mark, 0
        end
    end
    return nil, job.comment ~= job.given and job.comment or nil
end

local function asks_anew(job_desc)
    for _, field in ipairs(REQUESTED) do
        local value = job_desc[field]
        local number = tonumber(value)
        local left_out = value == nil or number == NOT_GIVEN or (number or 0) >= slurm.NO_VAL
        if not left_out then
            return true
        end
    end
    return false
end

-- A change that an owner asks for, read: how the job stands, and as it would be.
local function read_change(job_desc, job_rec, conf)
    local before = texts_of(job_rec, READ, {})
    before.derived = text_of(job_rec.tres_fmt_req_str) -- all that tells of GPUs that follow from the tasks
    before.batch = job_rec.script ~= nil and job_rec.script ~= ""
    before.heterogeneous = (tonumber(job_rec.het_job_id) or 0) > 0
    local after = texts_of(job_desc, READ, {})
    for field, value in pairs(before) do
        if after[field] == nil then
            after[field] = value
        end
    end
    local asked = tonumber(job_desc.priority) or slurm.NO_VAL
    local held, begin = job_rec.priority == 0, tonumber(job_desc.begin_time) or 0
    return {
        before = before,
        after = after,
        written = texts_of(job_desc, WRITTEN, { arguments = arguments_of(job_desc) }),
        comment_given = text_of(job_desc.comment),
        standing = before.comment or "",
        waits = (tonumber(job_rec.job_state) or 0) % 256 == 0,
        restarted = (tonumber(job_rec.restart_cnt) or 0) > 0,
        held = held,
        holds = asked == 0,
        releases = held and asked ~= 0 and asked ~= slurm.NO_VAL,
        begin = begin > 0 and begin < slurm.NO_VAL and begin or nil,
        begins = tonumber(job_rec.begin_time) or 0,
        asks_anew = asks_anew(job_desc),
        exclusive = tonumber(job_desc.shared) == 0,
        trusted = conf ~= nil and is_trusted(job_rec.user_id, conf),
    }
end

-- Whether the change would let Slurm start a managed job before a round has placed it: an end of its hold, a change
-- that makes a waiting job managed, another request for one that is about to start, as one is that its owner requeued,
-- or another begin time for one that was put off.
local function passes_the_line(change, conf)
    if not conf or not conf.enforces or change.trusted or not change.waits or not managed(change.after, conf) then
        return false
    end
    if hook.parse(change.standing).left then
        return false
    end
    local unheld = not change.held and not change.holds
    local anew = change.asks_anew or not managed(change.before, conf)
    return change.releases or (unheld and (anew or change.restarted and change.begin ~= nil))
end

-- What becomes of a change: a code to refuse it with, or the comment, priority and begin time to set.
local function judge_change(change, conf)
    local why = conf and refused_text(change.written)
    if why then
        return refuse(why, ACCESS_DENIED)
    end
    if conf and #(change.comment_given or "") > SLURMS_LONGEST then -- some releases check it at submission only
        return refuse(NO_ROOM, ACCESS_DENIED)
    end
    if conf and not managed(change.after, conf) and takes_whole_nodes(change.after, change.exclusive, conf) then
        return refuse(WHOLE_NODES, ACCESS_DENIED)
    end
    local given = change.comment_given or change.standing
    local comment, marks_only = hook.unmarked(given)
    if change.comment_given then
        tell_problems(hook.parse(comment).problems)
    end
    local ours = change.held and hook.parse(change.standing).held_by_hook
    if passes_the_line(change, conf) then
        if ours and not change.restarted then
            return refuse("the job waits for its round: 'synsched explain' tells why", ACCESS_DENIED)
        end
        if change.restarted then -- the hold of a job that has run is known by the database alone: not to be made here
            tell(LATER)
            local after_the_round = os.time() + 60 + (conf.period or 300)
            return nil, comment ~= given and comment or nil, nil, math.max(change.begin or change.begins, after_the_round)
        end
        local mark = hook.marked(comment, nil, marks_only)
        if not mark then
            return refuse(NO_ROOM, ACCESS_DENIED)
        end
        tell(LATER)
        return nil, mark, 0
    end
    local standing = hook.parse(change.standing)
    if standing.left or (not change.holds and standing.held_by_hook) then -- a hold by the owner is not ours any more
        comment = hook.marked(comment, standing.left and "left=" .. standing.left, marks_only)
        if not comment then
            comment = change.standing
            tell("the comment is too long and stays as it was")
        end
    end
    return nil, comment ~= given and comment or nil
end

local function log_failure(problem)
    pcall(function()
        slurm.log_error("%s", "synsched: job_submit.lua: " .. tostring(problem))
    end)
end

-- Reads, judges, and sets what was decided. See the head of this file for what becomes of failures.
local function decided(job_desc, read, judge, code)
    local known, conf = pcall(living)
    if not known then
        log_failure(conf)
        conf = nil
    end
    local was_read, job = pcall(read, conf)
    if not was_read then
        log_failure(job)
        return slurm.SUCCESS
    end
    local judged, refusal, comment, priority, begin_time = pcall(judge, job, conf)
    if not judged then
        log_failure(refusal)
        if not conf or not conf.enforces then
            return slurm.SUCCESS
        end
        pcall(tell, "the options of this job cannot be read")
        return code
    end
    if refusal then
        return refusal
    end
    local set, problem = pcall(function()
        for field, value in pairs({ comment = comment, priority = priority, begin_time = begin_time }) do
            job_desc[field] = value
        end
    end)
    if not set then
        log_failure(problem)
    end
    return slurm.SUCCESS
end

function hook.submit(job_desc, part_list)
    return decided(job_desc, function()
        return read_submission(job_desc, part_list)
    end, judge_submission, slurm.ERROR)
end

-- Only the owner's changes matter: an operator, and the scheduler itself, know what they do.
function hook.modify(job_desc, job_rec, _, modify_uid)
    local known, owner = pcall(function()
        return job_rec.user_id
    end)
    if not known or modify_uid ~= owner then
        return slurm.SUCCESS
    end
    return decided(job_desc, function(conf)
        return read_change(job_desc, job_rec, conf)
    end, judge_change, ACCESS_DENIED)
end

slurm_job_submit, slurm_job_modify = hook.submit, hook.modify

return hook
