"""Fragmentation gradient descent on Slurm, for jobs with shards, with whole GPUs and without GPUs."""
