-- How fast the jobs of one owner and model were, over all of them: their reports serve his next ones. `family` is the
-- owner and the model or name; rows that nobody has added to for as long as history is kept are forgotten.
CREATE TABLE family_rates (
    family TEXT NOT NULL,
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
    PRIMARY KEY (family, gpu_type, gpus, nodes, cpus, memory)
);
CREATE INDEX family_rates_at ON family_rates (at);
