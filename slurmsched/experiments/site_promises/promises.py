"""Which policy promises what: one table, read from the papers, and what each promise asks of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slurmsched.experiments.experiment import Bound
from slurmsched.settings.definition import GuardSettings


class SitePromise(StrEnum):
    """A promise, by the name of its figure."""

    SHARE = "GPU time over the share, least user"
    MOST_SHARE = "GPU time over the share, most user"
    JOB_SHARE = "GPU time over the share, least job"
    MOST_JOB_SHARE = "GPU time over the share, most job"
    NEAR_SHARE = "users within 10 % of their share"
    PARTITION = "work over that on an equal partition, least user"
    TRADED = "work with trading over that without, least user"
    PINNING = "work by pinning a type over that without"
    FASTEST = "use of idle types that are faster"
    MATCH = "types to whom they help most"
    UNPAIRED = "starts that share no GPU while another is idle"
    MAKESPAN = "makespan over that on whole GPUs"
    COMPLETION = "mean completion over that on whole GPUs"
    COPIES = "total time over that of HadarE's experiment"
    RATE = "lowest rate over the proportional share's"
    USEFUL = "useful part of held GPU time"
    START = "longest wait for a first start"
    RESTARTS = "most restarts of a job within 24 h"


@dataclass(frozen=True, slots=True)
class PromiseBound:
    """What a promise asks: the figure is `bound` to `limit`, `tolerance` is absolute. A limit of None is the
    scenario's."""

    unit: str
    bound: Bound
    limit: float | None
    tolerance: float = 0.0


ASKED: Final[Mapping[SitePromise, PromiseBound]] = {
    SitePromise.SHARE: PromiseBound("x", Bound.AT_LEAST, 1.0, 0.10),
    SitePromise.MOST_SHARE: PromiseBound("x", Bound.AT_MOST, 1.0, 0.10),
    SitePromise.NEAR_SHARE: PromiseBound("part", Bound.AT_LEAST, 0.95),
    SitePromise.JOB_SHARE: PromiseBound("x", Bound.AT_LEAST, 1.0, 0.10),
    SitePromise.MOST_JOB_SHARE: PromiseBound("x", Bound.AT_MOST, 1.0, 0.10),
    SitePromise.PARTITION: PromiseBound("x", Bound.AT_LEAST, 1.0, 0.10),
    SitePromise.TRADED: PromiseBound("x", Bound.AT_LEAST, 1.0, 0.10),
    SitePromise.PINNING: PromiseBound("x", Bound.AT_MOST, 1.0, 0.10),
    SitePromise.FASTEST: PromiseBound("part", Bound.AT_LEAST, 0.9),
    SitePromise.MATCH: PromiseBound("part", Bound.AT_LEAST, 0.75),
    SitePromise.UNPAIRED: PromiseBound("part", Bound.AT_LEAST, 1.0),
    SitePromise.MAKESPAN: PromiseBound("x", Bound.AT_MOST, 1.0, 0.05),
    SitePromise.COMPLETION: PromiseBound("x", Bound.AT_MOST, 1.0, 0.05),
    SitePromise.COPIES: PromiseBound("x", Bound.AT_MOST, 1.0, 0.03),
    SitePromise.RATE: PromiseBound("x", Bound.AT_LEAST, 1.0, 1e-6),
    SitePromise.USEFUL: PromiseBound("part", Bound.AT_LEAST, 0.95),
    SitePromise.START: PromiseBound("h", Bound.AT_MOST, None),
    SitePromise.RESTARTS: PromiseBound("", Bound.AT_MOST, float(GuardSettings().moves_per_job_day)),
}
"""Nothing restarts in a partition of one's own, hence that tolerance, which is that of the shares. Types that are dealt
out blindly are about halfway between their worst and their best use."""

_EVERY: Final[Mapping[SitePromise, str]] = {
    SitePromise.RATE: "architecture.md, four promises: no managed job runs slower than at its GPU-proportional share",
    SitePromise.USEFUL: "policies.md: a job restarts for another only where that pays, within the guards",
    SitePromise.RESTARTS: "settings.md, guards.moves_per_job_day",
}
"""What this scheduler promises whatever the policy."""

_LEAST_SERVED_FIRST: Final = {
    SitePromise.START: "Tiresias as in Tesserae, section 6: who has attained least service comes first, as newcomers",
}
_TESSERAE: Final = {
    SitePromise.UNPAIRED: "Tesserae, section 3.2: as many jobs as possible are placed without packing first",
    SitePromise.MAKESPAN: "Tesserae, abstract: packing improves the makespan",
    SitePromise.COMPLETION: "Tesserae, abstract: packing improves job completion times",
}
_TYPES: Final = "Hadar, section III-B: each job gets the types with the highest payoff by its throughput on each"

_GAVEL_SHARES: Final = "Gavel, section 4.1: max-min fairness of the jobs' GPU time"
_TICKETS: Final = "Gandiva_fair, slide 6: throughput is allocated by tickets among all active users"

_OWN: Final = "policies.md, unified: GPUs go to the highest bids, more for who is behind and on types that are faster"

PROMISED: Final[Mapping[str, Mapping[SitePromise, str]]] = {
    "synergy": {**_EVERY, **_LEAST_SERVED_FIRST},
    "synergy-greedy": _EVERY,
    "proportional": {**_EVERY, **_LEAST_SERVED_FIRST},
    "drf": _EVERY,
    "tetris": _EVERY,
    "tesserae": {**_EVERY, **_LEAST_SERVED_FIRST, **_TESSERAE},
    "tesserae-ftf": {**_EVERY, **_TESSERAE},
    "tesserae-packed": {**_EVERY, **_TESSERAE},
    "fgd": _EVERY,
    "tiresias": {**_EVERY, **_LEAST_SERVED_FIRST},
    "yarn-cs": _EVERY,
    "gavel": {
        **_EVERY,
        **_LEAST_SERVED_FIRST,
        SitePromise.JOB_SHARE: _GAVEL_SHARES,
        SitePromise.MOST_JOB_SHARE: _GAVEL_SHARES,
        SitePromise.FASTEST: "Gavel, section 4.1: throughputs on each type decide",
    },
    "hadar": {**_EVERY, SitePromise.FASTEST: _TYPES, SitePromise.MATCH: _TYPES},
    "hadare": {
        **_EVERY,
        SitePromise.FASTEST: _TYPES,
        SitePromise.MATCH: _TYPES,
        SitePromise.COPIES: "HadarE, section V-A: copies on all nodes share what is left of a job by their throughput",
    },
    "gandiva-fair": {
        **_EVERY,
        SitePromise.SHARE: _TICKETS,
        SitePromise.MOST_SHARE: _TICKETS,
        SitePromise.NEAR_SHARE: "Gandiva_fair, slide 14: users get their share; of 70 users 95 %, chosen afterwards",
        SitePromise.PARTITION: "Gandiva_fair, slides 3 and 12: performance isolation, and both users of a trade gain",
        SitePromise.TRADED: "Gandiva_fair, slide 12: both users of a trade gain",
        SitePromise.PINNING: "Gandiva_fair, slide 12: trades are incentive-compatible",
        SitePromise.FASTEST: "Gandiva_fair, slide 11: jobs run on the fastest GPU subject to contention",
        SitePromise.MATCH: "Gandiva_fair, slide 12: trades between the highest and the lowest speed-up",
        SitePromise.START: "Gandiva_fair, slide 7: the least pass comes first",
    },
    "unified": {
        **_EVERY,
        SitePromise.SHARE: _OWN,
        SitePromise.PARTITION: _OWN,
        SitePromise.PINNING: _OWN,
        SitePromise.FASTEST: _OWN,
        SitePromise.MATCH: _OWN,
        SitePromise.START: _OWN,
    },
    "slurm": _EVERY,
}
"""For each policy what it promises, with the source; a figure that a policy does not promise is stated, not held."""

POLICIES_BY_TYPES: Final = tuple(name for name, promised in PROMISED.items() if SitePromise.FASTEST in promised)
"""The policies that know GPU types."""

PAIRING_POLICIES: Final = tuple(name for name, promised in PROMISED.items() if SitePromise.UNPAIRED in promised)
