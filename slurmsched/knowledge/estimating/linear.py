"""Data-parallel jobs of any width, from what one GPU does (Tesserae, section 4.3).

Twice the GPUs do twice the work, and two jobs that share N GPUs keep the same parts of their rates as on one. Real
models do less on many GPUs: what was measured of a width goes before this.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurmsched.knowledge.scaling import Scaling

__all__ = ["data_parallel"]


def data_parallel(rate: float, beside: Mapping[str, float]) -> Scaling:
    """A model's scaling from its rate on one GPU, and from the parts of it that it keeps there beside others."""
    return Scaling((1,), (rate,), beside=dict(beside))
