"""The `synsched` command: click commands, one module for each group, thin over the rooms below."""

from slurmsched.cli.program import main

__all__ = ["main"]
