"""The table of floors in docs/architecture.md is what the code does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
PACKAGE = CHECKOUT / "slurmsched"
PAGE = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")


def floors() -> dict[str, int]:
    """Room to floor, ground is 0, as the page says."""
    table = re.findall(r"(?m)^\| (\d+) \| ((?:`\w+`(?:, )?)+) \|", PAGE)
    return {room: int(floor) for floor, names in table for room in re.findall(r"\w+", names)}


def imported(file: Path) -> Iterator[str]:
    """Rooms that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "slurmsched":
            names = [f"slurmsched.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("slurmsched."))


def test_every_room_is_in_the_table() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} == set(floors())


@pytest.mark.parametrize("room", floors())
def test_a_room_imports_only_from_floors_below(room: str) -> None:
    level = floors()
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").is_file() else sorted((PACKAGE / room).rglob("*.py"))
    for file in files:
        above = {other for other in imported(file) if other != room and level[other] >= level[room]}
        assert not above, f"{file.relative_to(CHECKOUT)} imports from {', '.join(sorted(above))}"


def test_every_file_that_the_page_names_exists() -> None:
    for name in re.findall(r"`((?:\w+/)+[\w./]*)`", PAGE):
        assert any((root / name).exists() for root in (CHECKOUT, PACKAGE)), name
