-- How fast the jobs of one owner and model were on GPUs that they shared with a job of another family, or had to
-- themselves (`other` is empty); their quotient is what a pair is worth. `gpus` are the devices.
CREATE TABLE pair_rates (
    family TEXT NOT NULL,
    other TEXT NOT NULL,
    gpu_type TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    cpus REAL NOT NULL,
    steps REAL NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (family, other, gpu_type, gpus, cpus)
);
CREATE INDEX pair_rates_at ON pair_rates (at);

-- The job with which a job shared its GPUs at its last report: empty if it had them to itself, NULL where that is not known.
ALTER TABLE reported ADD COLUMN beside TEXT;
