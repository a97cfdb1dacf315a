"""How far back what jobs asked for counts as usual."""

from __future__ import annotations

from typing import Final

__all__ = ["USUAL"]

USUAL: Final = 14 * 86400.0
"""Seconds."""
