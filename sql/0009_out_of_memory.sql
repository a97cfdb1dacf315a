-- Jobs that ran out of memory beside another one on the same GPU, the last time of each such pair. `owner` and `model` are
-- those of the job that ran out of it.
CREATE TABLE out_of_memory (
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    other_owner TEXT NOT NULL,
    other_model TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, model, other_owner, other_model)
) WITHOUT ROWID;
