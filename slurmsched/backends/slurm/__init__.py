"""The backend for a real Slurm cluster, read by commands or by pyslurm and changed by commands: `backend.connect`.

Nothing is imported here, since commands that only read the database use `hostlist` and start in two thirds of the time.
"""
