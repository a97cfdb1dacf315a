"""Where a plan meets a cluster."""

from slurmsched.backends.protocol import (
    ORDINARY_RIGHTS,
    Backend,
    BackendError,
    Calls,
    Identity,
    NotPermittedError,
    Privilege,
    UnreachableError,
)

__all__ = [
    "ORDINARY_RIGHTS",
    "Backend",
    "BackendError",
    "Calls",
    "Identity",
    "NotPermittedError",
    "Privilege",
    "UnreachableError",
]
