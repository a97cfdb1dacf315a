-- What a round asks for is found by index, however long the history is.

-- Jobs that live, and ended ones of which something is still ours.
CREATE INDEX jobs_live ON jobs (id) WHERE state != 'finished' OR held_by_us OR reshaped OR boosted;
CREATE INDEX jobs_seen ON jobs (last_seen);

DROP INDEX operations_open;
CREATE INDEX operations_result ON operations (result, round);
CREATE INDEX operations_round ON operations (round);
CREATE INDEX operations_intended ON operations (intended);
CREATE INDEX operations_finished ON operations (verb, result, finished);

CREATE INDEX events_at ON events (at);
CREATE INDEX events_device ON events (round) WHERE kind = 'device';

CREATE INDEX service_started ON service (run_started);

CREATE INDEX rounds_started ON rounds (started);
CREATE INDEX rounds_open ON rounds (id) WHERE finished IS NULL;
CREATE INDEX rounds_recorded ON rounds (id) WHERE snapshot IS NOT NULL;
CREATE INDEX rounds_surveyed ON rounds (id) WHERE overview IS NOT NULL;

-- How many jobs seen last on a day (unix days) ask for the same. It follows `jobs` by itself, whoever writes there.
CREATE TABLE requests_by_day (
    day INTEGER NOT NULL,
    original TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (day, original)
) WITHOUT ROWID;

INSERT INTO requests_by_day (day, original, jobs)
    SELECT CAST(last_seen / 86400 AS INTEGER), original, count(*) FROM jobs GROUP BY 1, 2;

CREATE TRIGGER requests_of_new_jobs AFTER INSERT ON jobs BEGIN
    INSERT INTO requests_by_day (day, original, jobs)
        VALUES (CAST(new.last_seen / 86400 AS INTEGER), new.original, 1)
        ON CONFLICT (day, original) DO UPDATE SET jobs = jobs + 1;
END;

CREATE TRIGGER requests_of_dropped_jobs AFTER DELETE ON jobs BEGIN
    UPDATE requests_by_day SET jobs = jobs - 1
        WHERE day = CAST(old.last_seen / 86400 AS INTEGER) AND original = old.original;
    DELETE FROM requests_by_day
        WHERE day = CAST(old.last_seen / 86400 AS INTEGER) AND original = old.original AND jobs <= 0;
END;

CREATE TRIGGER requests_of_changed_jobs AFTER UPDATE OF last_seen, original ON jobs
WHEN CAST(old.last_seen / 86400 AS INTEGER) != CAST(new.last_seen / 86400 AS INTEGER) OR old.original != new.original
BEGIN
    UPDATE requests_by_day SET jobs = jobs - 1
        WHERE day = CAST(old.last_seen / 86400 AS INTEGER) AND original = old.original;
    DELETE FROM requests_by_day
        WHERE day = CAST(old.last_seen / 86400 AS INTEGER) AND original = old.original AND jobs <= 0;
    INSERT INTO requests_by_day (day, original, jobs)
        VALUES (CAST(new.last_seen / 86400 AS INTEGER), new.original, 1)
        ON CONFLICT (day, original) DO UPDATE SET jobs = jobs + 1;
END;

-- Rows that a round could not read and went on without, for `status` and `doctor`.
CREATE TABLE unreadable (
    place TEXT NOT NULL,                 -- the table
    row TEXT NOT NULL,                   -- its key there
    problem TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (place, row)
);

-- Up to when upkeep has come: 'pruned' is the time before which history is dropped, 'checked' when the file was checked.
CREATE TABLE upkeep (
    name TEXT PRIMARY KEY,
    at REAL NOT NULL
);
