-- The GPU type that a run has: a duration refers to one type, of which a run on a slower one does less. Empty where it is
-- not known, also of runs before this step.
ALTER TABLE service ADD COLUMN gpu_type TEXT NOT NULL DEFAULT '';
