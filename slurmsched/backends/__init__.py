"""Backends: read a cluster and carry out operations on it."""

from slurmsched.backends.protocol import (
    REQUIRED_PRIVILEGES,
    Backend,
    BackendError,
    CallCounts,
    Identity,
    NotPermittedError,
    Privilege,
    UnreachableError,
)

__all__ = [
    "REQUIRED_PRIVILEGES",
    "Backend",
    "BackendError",
    "CallCounts",
    "Identity",
    "NotPermittedError",
    "Privilege",
    "UnreachableError",
]
