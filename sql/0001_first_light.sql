-- Rounds, the journal of operations, what is known of each job, and the accounts of attained service.
-- Times are unix seconds; JSON columns hold the model's own forms.

CREATE TABLE rounds (
    id INTEGER PRIMARY KEY,
    started REAL NOT NULL,
    finished REAL,
    mode TEXT NOT NULL,
    system TEXT NOT NULL,
    ordering TEXT NOT NULL,
    nodes INTEGER NOT NULL DEFAULT 0,
    jobs INTEGER NOT NULL DEFAULT 0,
    managed INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    observe_s REAL, decide_s REAL, plan_s REAL, apply_s REAL,
    reads INTEGER NOT NULL DEFAULT 0,
    writes INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    overview TEXT,                       -- JSON: per node and per GPU type what is used, for `status` and `free`
    snapshot BLOB                        -- zlib-compressed JSON of the snapshot and the memory, for replay; NULL once pruned
);

-- Write-ahead journal: a row is written with result 'intended' before the operation and completed after it.
CREATE TABLE operations (
    id INTEGER PRIMARY KEY,
    round INTEGER NOT NULL REFERENCES rounds (id),
    position INTEGER NOT NULL,
    verb TEXT NOT NULL,
    subject TEXT NOT NULL,
    before TEXT,
    after TEXT,
    reason TEXT NOT NULL,                -- JSON {code, details}
    sentence TEXT NOT NULL,
    undo TEXT,                           -- JSON operation, NULL where nothing can take it back
    result TEXT NOT NULL,
    commands TEXT NOT NULL DEFAULT '[]',
    detail TEXT NOT NULL DEFAULT '',
    intended REAL NOT NULL,
    finished REAL
);
CREATE INDEX operations_subject ON operations (subject);
CREATE INDEX operations_open ON operations (result) WHERE result = 'intended';

-- One row per managed job: what was asked before we reshaped it, and whose hold it is under.
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    first_seen REAL NOT NULL,
    last_seen REAL NOT NULL,
    state TEXT NOT NULL,
    original TEXT NOT NULL,              -- JSON Request
    original_nice INTEGER NOT NULL DEFAULT 0,
    held_by_us INTEGER NOT NULL DEFAULT 0,
    reshaped INTEGER NOT NULL DEFAULT 0, -- what stands in Slurm differs from `original`
    boosted INTEGER NOT NULL DEFAULT 0,  -- its nice is ours
    rank INTEGER,
    rank_key TEXT NOT NULL DEFAULT '',
    reason TEXT,                         -- JSON, why it runs or waits as of the last round
    sentence TEXT NOT NULL DEFAULT '',
    target TEXT,                         -- JSON Target, NULL while it waits
    summary TEXT NOT NULL DEFAULT '{}'   -- JSON: user, account, partition, gpus, gpu_type, cpus, memory, nodes, hints, problems
);

-- What happened to a job, for `history`.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    round INTEGER,
    job TEXT NOT NULL,
    kind TEXT NOT NULL,                  -- seen, started, moved, displaced, reshaped, released, ended, refused, hint, undone
    code TEXT NOT NULL DEFAULT '',
    sentence TEXT NOT NULL
);
CREATE INDEX events_job ON events (job, at);

-- GPU-seconds per run of a job; a restart begins a new row, so nothing is lost or counted twice.
CREATE TABLE service (
    job TEXT NOT NULL,
    run_started REAL NOT NULL,
    gpu_seconds REAL NOT NULL,
    PRIMARY KEY (job, run_started)
);

CREATE TABLE policy_state (
    system TEXT PRIMARY KEY,
    state TEXT NOT NULL
);

-- Switches people set: 'paused' with who and why.
CREATE TABLE switches (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    set_by TEXT NOT NULL,
    at REAL NOT NULL
);
