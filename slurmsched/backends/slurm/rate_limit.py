"""How many requests a user may send to slurmctld: a bucket of tokens that is filled again at a steady rate.

With `SlurmctldParameters=rl_enable` (since 23.02) a request beyond that is answered with an error that Slurm's commands
do not show: they sleep for a second, then two, and try again until they are let in. So a batch of updates takes as long
as the rate says, and a timeout that does not know of it would kill scontrol half-way. SlurmUser and root are exempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_OPTIONS: Final[Mapping[str, int]] = {"rl_bucket_size": 30, "rl_refill_rate": 2, "rl_refill_period": 1}
"""The options with their defaults: tokens, tokens, seconds (slurm.conf(5), the same from 23.02 to 25.11)."""
_REQUESTS_OF_NODE_UPDATE: Final = 3
"""An update that names nodes or their number: scontrol looks the job up before (measured on 24.11)."""
_REQUESTS_PER_OPERATION: Final = 2.0
"""On the average of a start: an update that names nodes, and a release."""
_SLEEP: Final = 2.0
"""How much longer than the rate says it takes where scontrol sleeps for whole seconds, at most."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Requests that may be sent at once (`burst`), and per second from then on."""

    burst: int
    per_second: float

    @property
    def operation_seconds(self) -> float:
        """Seconds that an operation on a job takes, once the burst is spent."""
        return _REQUESTS_PER_OPERATION / self.per_second

    def seconds_for(self, lines: Iterable[str]) -> float:
        """Seconds within which scontrol has sent the requests of these lines, at the latest."""
        requests = sum(_REQUESTS_OF_NODE_UPDATE if "NodeList=" in line or "NumNodes=" in line else 1 for line in lines)
        return _SLEEP * requests / self.per_second

    @property
    def text(self) -> str:
        """The limit in words: `2 requests a second after 30 at once`."""
        return f"{self.per_second:g} requests a second after {self.burst} at once"


def parse_rate_limit(parameters: str) -> RateLimit | None:
    """The limit that SlurmctldParameters sets; None for none. A value that is no positive number is the default."""
    words = dict(word.strip().lower().partition("=")[::2] for word in parameters.split(","))
    if "rl_enable" not in words:
        return None
    given = {name: int(text) if (text := words.get(name, "")).isdecimal() else 0 for name in _OPTIONS}
    burst, rate, period = (given[name] or default for name, default in _OPTIONS.items())
    return RateLimit(burst, rate / period)
