-- What jobs report of themselves, as far as it was believed: the last word of each, and how fast it was with what.

CREATE TABLE reported (
    job TEXT PRIMARY KEY,
    run INTEGER NOT NULL,
    at REAL NOT NULL,
    steps INTEGER NOT NULL,
    done INTEGER NOT NULL,
    busy REAL NOT NULL
);

-- Steps and the seconds they took, with older ones counting less and less; CPUs and memory (MiB) are per GPU, and the
-- fair ones are those of its proportional share.
CREATE TABLE rates (
    job TEXT NOT NULL,
    gpu_type TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    cpus REAL NOT NULL,
    memory REAL NOT NULL,
    fair_cpus REAL NOT NULL,
    fair_memory REAL NOT NULL,
    steps REAL NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (job, gpu_type, gpus, nodes, cpus, memory)
);

-- Whose reports were not believed, and why, for `doctor`.
CREATE TABLE complaints (
    subject TEXT PRIMARY KEY,
    sentence TEXT NOT NULL,
    at REAL NOT NULL
);
