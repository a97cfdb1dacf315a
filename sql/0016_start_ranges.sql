-- By how much the 80 % ranges of starts are widened or narrowed: how many times the parts `below` and `above` the median
-- count, after so many outcomes, of which what had been told `covered` some, the last ones noted `at` a time (unix seconds).
-- One row at most.
CREATE TABLE start_ranges (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    below REAL NOT NULL,
    above REAL NOT NULL,
    counted INTEGER NOT NULL,
    covered INTEGER NOT NULL,
    at REAL NOT NULL
);

-- The first forecast of each unfinished job: the range as it was drawn, and as it was told after that correction. `counted`
-- is 1 once what became of it has corrected the ranges: each job does so once.
CREATE TABLE first_draws (
    job TEXT PRIMARY KEY,
    at REAL NOT NULL,
    told REAL NOT NULL,
    until REAL NOT NULL,
    low REAL,
    median REAL,
    high REAL,
    told_low REAL,
    told_high REAL,
    counted INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX first_draws_counted ON first_draws (counted, told_high);
