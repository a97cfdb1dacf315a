-- Who told the mean use of a run's GPUs: jobstats, or an exporter that Prometheus was asked for.
ALTER TABLE finished_runs ADD COLUMN gpu_source TEXT NOT NULL DEFAULT '';

-- The exporters that Prometheus is asked for: when last, what went wrong since (`problem`, `failures` times in a row), of
-- how many runs each has told, and when last.
CREATE TABLE telemetry (
    exporter TEXT PRIMARY KEY,
    asked REAL NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    problem TEXT NOT NULL DEFAULT '',
    told INTEGER NOT NULL DEFAULT 0,
    last_told REAL NOT NULL DEFAULT 0
);
