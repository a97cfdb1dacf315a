-- What was forecast of a job before it first ran, as the 80 % range of its seconds, and the duration that its owner told:
-- both are compared with what it took. NULL if nothing was forecast.
ALTER TABLE jobs ADD COLUMN likely_from REAL;
ALTER TABLE jobs ADD COLUMN likely_to REAL;
ALTER TABLE jobs ADD COLUMN hinted REAL;
