-- Runs that have ended, as Slurm's accounting has them: what is learnt of an owner's work. `work` is the job's name with
-- digits as #, so that `train-1` and `train-2` are runs of the same. Amounts are of all nodes together, memory in MiB.
CREATE TABLE finished_runs (
    job TEXT NOT NULL,
    ended REAL NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    work TEXT NOT NULL,
    model TEXT NOT NULL,
    script TEXT NOT NULL,
    folder TEXT NOT NULL,
    array_job TEXT NOT NULL,
    end TEXT NOT NULL,                   -- completed, cancelled, timed out, failed, requeued
    seconds REAL NOT NULL,
    time_limit INTEGER,
    gpus INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    memory INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    cpu_seconds REAL,
    gathered INTEGER NOT NULL,
    peak_memory INTEGER,
    gpu_use REAL,
    peak_gpu_use REAL,
    gpu_memory INTEGER,
    idle_gpus INTEGER,
    PRIMARY KEY (job, ended)
) WITHOUT ROWID;
CREATE INDEX finished_runs_work ON finished_runs (owner, work, ended);
CREATE INDEX finished_runs_model ON finished_runs (owner, model, ended) WHERE model != '';
CREATE INDEX finished_runs_ended ON finished_runs (ended);
CREATE INDEX finished_runs_owner ON finished_runs (owner, ended);

-- How far accounting has been read (`reached`), the window of the next question in seconds, and what went wrong since
-- (`problem`, `failures` times in a row, `asked` last). One row.
CREATE TABLE accounting (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    reached REAL NOT NULL,
    span REAL NOT NULL,
    asked REAL NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    problem TEXT NOT NULL DEFAULT ''
);

-- Owners of whom all that was learnt up to a time was deleted: it is not learnt again.
CREATE TABLE forgotten (
    owner TEXT PRIMARY KEY,
    at REAL NOT NULL
);

-- Of each job seen, a digest of its script and the folder that it runs in; NULL until it was asked for.
ALTER TABLE jobs ADD COLUMN script TEXT;
ALTER TABLE jobs ADD COLUMN folder TEXT;
