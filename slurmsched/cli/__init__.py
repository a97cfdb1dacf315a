"""The `synsched` command: click commands that parse arguments, call the other packages and print the result."""

from slurmsched.cli.program import main

__all__ = ["main"]
