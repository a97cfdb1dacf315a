"""A database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmsched.store.database import Database
from slurmsched.store.maintenance import migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "synsched.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = Database.open(path)
    migrate(opened, at=1.0)
    yield opened
    opened.close()
