"""The daemon: runs rounds, applies their plans, writes the heartbeat, and gives jobs back to Slurm."""
