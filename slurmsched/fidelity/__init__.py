"""The simulator held against a real Slurm: the same jobs on both, in a small time."""
