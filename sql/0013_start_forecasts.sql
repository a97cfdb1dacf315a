-- When jobs that wait are expected to start and to end, in unix seconds, NULL for after `until`; or why nothing is told of
-- them. `at` is the time of the round that it goes on from, `told` when it was stored. `which` is `last` for what people
-- are shown, `first` for what was told first, `hour` and `next` for what was told in the hours before the start.
CREATE TABLE start_forecasts (
    job TEXT NOT NULL,
    which TEXT NOT NULL,
    at REAL NOT NULL,
    told REAL NOT NULL,
    until REAL NOT NULL,
    draws INTEGER NOT NULL,
    start_low REAL,
    start_median REAL,
    start_high REAL,
    end_low REAL,
    end_median REAL,
    end_high REAL,
    why TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, which)
) WITHOUT ROWID;
CREATE INDEX start_forecasts_which ON start_forecasts (which, at);

-- What had been told of jobs that have started since: first, and about an hour before.
CREATE TABLE told_starts (
    job TEXT NOT NULL,
    which TEXT NOT NULL,
    started REAL NOT NULL,
    owner TEXT NOT NULL,
    told REAL NOT NULL,
    until REAL NOT NULL,
    low REAL,
    median REAL,
    high REAL,
    PRIMARY KEY (job, which, started)
) WITHOUT ROWID;
CREATE INDEX told_starts_started ON told_starts (started);
