-- When a job was first submitted: Slurm renews the time at each requeue, and orders by submission would forget it.
ALTER TABLE jobs ADD COLUMN submitted REAL;
