"""The backend for a real Slurm cluster, read by commands or by pyslurm and changed by commands: `backend.connect`.

Nothing is imported here: commands that only read the database use `hostlist`, and start sooner without the rest.
"""
