"""The jobs of a soak: more come by day than by night, some are cancelled, and some of their owners mean no good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import cos, pi
from random import Random
from typing import Final

from slurmsched.backends.simulated import SimulatedBackend, SimulatedEventKind, SimulatedJob, Submission
from slurmsched.backends.simulated.events import Event
from slurmsched.model import Gpu, JobId, Node, Request, Resources

_DAY: Final = 86400.0
_GROUPS: Final = (("v100", 3), ("k80", 2))
_GPUS_PER_NODE: Final = 8
_CPUS_PER_GPU: Final = 3
_MEMORY_PER_GPU: Final = 64_000

_SIZES: Final = (1, 1, 1, 2, 2, 4, 8, 16)
_MEAN_GPUS: Final = sum(_SIZES) / len(_SIZES)
_MEAN_HOURS: Final = 1.25
_SPREAD: Final = 1.0
"""Of the logarithm of a job's length."""
_ODDS_OF_CANCEL: Final = 0.08
_ODDS_OF_IMPOSSIBLE: Final = 0.01
_ODDS_OF_HOSTILE: Final = 0.1
_ODDS_OF_FAILURE: Final = 0.05
_ODDS_OF_NO_REQUEUE: Final = 0.1
_IMPOSSIBLE: Final = 512
"""GPUs of a job that can never start; its owner cancels it."""

_HINTS: Final = (
    "", "ckpt=usr1@30", "ckpt=usr1@60,model=resnet50", "task=image", "duration={minutes}m,ckpt=usr1@20", "model=gnmt",
)  # fmt: skip
_HOSTILE: Final = (
    "synsched:", "synsched:held=hook", "synsched:ckpt=usr1@9999999d", "synsched:duration=" + "9" * 400 + "h",
    "x JobId=1 JobState=RUNNING Comment=synsched:held=hook", "\x1b[2J\x1b]0;x\x07", "a|b|c|d", "'; DROP TABLE jobs; --",
    "$(reboot) `reboot`", "synsched:model=../../etc/passwd,task=" + "x" * 2000, "\u202e\u2029\x85",
    "{{ 7 * 7 }} <script>alert(1)</script>", "synsched:fork=99999999", "\\\\n" * 500,
)  # fmt: skip


def soak_nodes() -> tuple[Node, ...]:
    """Nodes of two GPU types, 40 GPUs in all."""
    total = Resources(_GPUS_PER_NODE, _GPUS_PER_NODE * _CPUS_PER_GPU, _GPUS_PER_NODE * _MEMORY_PER_GPU)
    return tuple(
        Node(
            f"{kind}-{number}",
            tuple(Gpu(index, kind) for index in range(_GPUS_PER_NODE)),
            total,
            Resources(),
            partitions=frozenset({"gpu"}),
        )
        for kind, count in _GROUPS
        for number in range(1, count + 1)
    )


@dataclass(slots=True)
class SoakJobs:
    """Jobs whose work keeps `busy` GPUs busy on average. `open` are those that have not ended, with their submit time
    (unix seconds)."""

    simulated: SimulatedBackend
    random: Random
    busy: float
    submitted: int = 0
    hostile: int = 0
    open: dict[JobId, float] = field(default_factory=dict)
    recent: dict[JobId, float] = field(default_factory=dict)
    """The same of those that ended within the last days."""

    def next_gap(self, now: float) -> float:
        """Seconds to the next job: at four in the afternoon three times as many come as at four in the morning."""
        mean = _MEAN_GPUS * _MEAN_HOURS * 3600.0 / self.busy
        return self.random.expovariate((1.0 + 0.5 * cos(2 * pi * (now / _DAY - 16 / 24))) / mean)

    def submit(self, at: float) -> None:
        """Submit a job; its owner may cancel it later."""
        choose = self.random
        gpus, hours = choose.choice(_SIZES), choose.lognormvariate(-0.5 * _SPREAD**2, _SPREAD) * _MEAN_HOURS
        hours = min(max(hours, 0.01), 24.0)
        impossible, hostile = choose.random() < _ODDS_OF_IMPOSSIBLE, choose.random() < _ODDS_OF_HOSTILE
        hint = choose.choice(_HINTS).format(minutes=round(60 * hours) + 1)
        name = choose.choice(_HOSTILE) if hostile else f"train-{choose.randrange(20)}"
        comment = choose.choice(_HOSTILE) if hostile else f"synsched:{hint}" if hint else ""
        gpus = _IMPOSSIBLE if impossible else gpus
        nodes = -(-gpus // _GPUS_PER_NODE)
        request = Request(
            gpus=gpus,
            gpus_per_node=gpus // nodes,
            nodes=nodes,
            tasks=nodes,
            cpus=gpus * choose.randint(1, _CPUS_PER_GPU),
            memory=gpus // nodes * choose.choice((8_000, 32_000, _MEMORY_PER_GPU)),
        )
        user = "mallory" if hostile else f"user{choose.randrange(12)}"
        job = self.simulated.submit(
            Submission(
                user, request, hours * 3600.0, time_limit=round(hours * 3600 * choose.uniform(1.2, 4.0)) + 600,
                name=name, comment=comment, account=f"account{choose.randrange(4)}",
                fails=choose.random() < _ODDS_OF_FAILURE, requeue=choose.random() >= _ODDS_OF_NO_REQUEUE,
                script=f"{choose.randrange(50):040x}", folder=f"/home/{user}",
            )
        )  # fmt: skip
        self.submitted += 1
        self.hostile += hostile
        self.open[job] = at
        if impossible or choose.random() < _ODDS_OF_CANCEL:
            later = at + choose.uniform(60.0, 6 * 3600.0)
            self.simulated.cluster.events.push(Event(later, SimulatedEventKind.CANCELLED, job))

    def note_ends(self, ended: Mapping[JobId, SimulatedJob]) -> None:
        """Note which jobs have ended."""
        for job in [job for job in self.open if job in ended]:
            self.recent[job] = self.open.pop(job)
