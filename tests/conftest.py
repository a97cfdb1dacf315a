"""For every test: hypothesis never fails a test for being slow on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", parent=settings.default, deadline=None)
settings.load_profile("unhurried")
