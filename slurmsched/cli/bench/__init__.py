"""`synsched bench`: how long the parts of a round take."""

from slurmsched.cli.bench.group import bench

__all__ = ["bench"]
