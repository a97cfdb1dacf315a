"""`synsched doctor`: checks Slurm and the installation, and names the remedy of each problem."""
