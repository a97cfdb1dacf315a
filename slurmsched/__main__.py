"""`python -m slurmsched` is `synsched`."""

from slurmsched.cli import main

main(prog_name="synsched")
