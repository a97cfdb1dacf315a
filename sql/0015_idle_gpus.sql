-- Running jobs with GPUs that are idle for long, managed or not: `idle` of `gpus` GPUs since `since`, as Prometheus told at
-- `at` (unix seconds). `agreed`: the owner lets the job rank last meanwhile. A job that is busy again or does not run any
-- more has no row.
CREATE TABLE idle_gpus (
    job TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    idle INTEGER NOT NULL,
    since REAL NOT NULL,
    at REAL NOT NULL,
    agreed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
