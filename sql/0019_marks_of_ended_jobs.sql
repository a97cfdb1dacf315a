-- A poll reads the unfinished jobs. Of those that ended it looks for marks that are a day old.
DROP INDEX jobs_live;
CREATE INDEX jobs_unfinished ON jobs (id) WHERE state != 'finished';
CREATE INDEX jobs_marked ON jobs (last_seen)
WHERE state = 'finished' AND (held_by_us OR reshaped OR boosted);
