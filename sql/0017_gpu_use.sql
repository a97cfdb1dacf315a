-- GPUs of the cluster in each round, how many of them were in use, in whole and in part, and on nodes that take no jobs
-- (idle): for the history of the page, as overviews of the nodes are kept of a few rounds only.
ALTER TABLE rounds ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rounds ADD COLUMN gpus_used REAL NOT NULL DEFAULT 0;
ALTER TABLE rounds ADD COLUMN gpus_down INTEGER NOT NULL DEFAULT 0;
