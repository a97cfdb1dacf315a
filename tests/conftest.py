"""For every test: hypothesis never fails a test for being slow on a busy machine. A merge is held to the same examples
each time; wherever else the tests run it searches for new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("unhurried", parent=settings.default, deadline=None, derandomize="CI" in os.environ)
settings.load_profile("unhurried")
