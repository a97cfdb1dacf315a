-- Jobs that exist and about which nothing is decided, as of the last look. `since` is when that began (unix seconds);
-- `mark` is what such a job looked like where deciding about it failed, empty where its record could not be read.
CREATE TABLE set_aside (
    job TEXT PRIMARY KEY,
    owner TEXT NOT NULL DEFAULT '',
    partition TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL,
    since REAL NOT NULL,
    mark TEXT NOT NULL DEFAULT '',
    tried REAL NOT NULL DEFAULT 0        -- when deciding about it failed last
);

-- What each job looked like in the last round that could be decided: one row, JSON {job: mark}.
CREATE TABLE decided (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at REAL NOT NULL,
    marks TEXT NOT NULL
);

-- Whose holds are ours, and who was told to write a checkpoint, is asked in every round.
CREATE INDEX jobs_held ON jobs (id) WHERE held_by_us;
CREATE INDEX operations_notified ON operations (finished) WHERE verb = 'notify';

-- Requests that no cluster could meet tell nothing of what is usually asked for; jobs that have ended need them no more.
DELETE FROM jobs WHERE state = 'finished' AND NOT held_by_us AND NOT reshaped AND NOT boosted
    AND CASE WHEN json_valid(original) THEN
        MAX(
            COALESCE(json_extract(original, '$.gpus'), 0),
            COALESCE(json_extract(original, '$.gpus_per_node'), 0),
            COALESCE(json_extract(original, '$.nodes'), 0),
            COALESCE(json_extract(original, '$.cpus'), 0) / 64,
            COALESCE(json_extract(original, '$.memory'), 0) / 1048576
        ) > 1048576
    ELSE 1 END;
