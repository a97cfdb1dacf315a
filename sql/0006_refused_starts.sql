-- Starts that Slurm refused, the last of each job: until `basis`, what the start depended on, has changed, or a while
-- has passed that grows with `tries`, it is not tried again.
CREATE TABLE refused_starts (
    job TEXT PRIMARY KEY,
    at REAL NOT NULL,
    tries INTEGER NOT NULL,
    reason TEXT NOT NULL,
    nodes TEXT NOT NULL,
    basis TEXT NOT NULL,
    displaced INTEGER NOT NULL
) WITHOUT ROWID;
