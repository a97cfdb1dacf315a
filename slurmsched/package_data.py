"""The files that come with the package: `sql`, `templates`, `hooks`."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from slurmsched.model import SynschedError


class MissingPackageDataError(SynschedError):
    """The installation is incomplete."""


def package_data(kind: str) -> Traversable:
    """The folder of one kind of shipped files: inside the package when installed, beside it in a checkout.

    Raises NotShippedError.
    """
    inside = files("slurmsched") / kind
    beside = Path(__file__).resolve().parent.parent / kind
    for folder in (inside, beside):
        if folder.is_dir():
            return folder
    raise MissingPackageDataError(f"this installation has no {kind} files: install slurmsched again")
