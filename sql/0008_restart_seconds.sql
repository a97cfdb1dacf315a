-- How long a job's last restart took, from its start to its first step; NULL until one was measured. It is carried from
-- report to report, also into the next runs.
ALTER TABLE reported ADD COLUMN restart_seconds REAL;
