"""The states of the random generators that a training script uses: Python's, numpy's and torch's, where it has them.

As JSON, not as a pickle: a checkpoint is data.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping

__all__ = ["Randomness", "capture", "restore"]

Randomness = Mapping[str, object]
"""Generator to state, fit for JSON."""


def capture() -> Randomness:
    """The states now."""
    version, state, gauss = random.getstate()
    found: dict[str, object] = {"python": [version, list(state), gauss]}
    if numpy := sys.modules.get("numpy"):
        kind, keys, place, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = [kind, [int(key) for key in keys], int(place), int(has_gauss), float(cached)]
    if torch := sys.modules.get("torch"):
        found["torch"] = bytes(torch.get_rng_state().numpy()).hex()
        if torch.cuda.is_available():
            found["cuda"] = [bytes(state.numpy()).hex() for state in torch.cuda.get_rng_state_all()]
    return found


def restore(states: Randomness) -> None:
    """Go on as if nothing had been in between. A generator that was not captured, or that is gone, is left alone, and
    so are the GPUs' where their number has changed."""
    if isinstance(held := states.get("python"), list):
        version, state, gauss = held
        random.setstate((version, tuple(state), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(held := states.get("numpy"), list):
        kind, keys, *rest = held
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if torch and isinstance(held := states.get("torch"), str):
        torch.set_rng_state(_tensor(held))
    if torch and isinstance(held := states.get("cuda"), list) and len(held) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_tensor(text) for text in held])


def _tensor(text: str) -> object:
    return sys.modules["torch"].frombuffer(bytearray.fromhex(text), dtype=sys.modules["torch"].uint8)
