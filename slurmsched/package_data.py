"""Finds the data files of the package: `sql`, `templates` and `hooks`."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from slurmsched.model import SynschedError


class MissingPackageDataError(SynschedError):
    """An incomplete installation."""


def package_data(kind: str) -> Traversable:
    """Returns the folder of one kind of data files: inside the package if installed, beside it in a checkout.

    Raises MissingPackageDataError.
    """
    inside = files("slurmsched") / kind
    beside = Path(__file__).resolve().parent.parent / kind
    for folder in (inside, beside):
        if folder.is_dir():
            return folder
    raise MissingPackageDataError(f"this installation has no {kind} files: install slurmsched again")
