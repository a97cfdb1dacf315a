"""How tickets are written: `alice=4`, `lab/vision=2.5`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["tickets_of"]

_ENTRY: Final = re.compile(r"(?P<name>[^=\s]{1,200})=(?P<tickets>\d{1,9}(?:\.\d{1,6})?)\Z")


def tickets_of(entry: str) -> tuple[str, float] | None:
    """The name and its tickets; None where it is not written so, or the tickets are not above zero."""
    match = _ENTRY.match(entry)
    tickets = float(match["tickets"]) if match else 0.0
    return (match["name"], tickets) if match and tickets > 0 else None
