"""HadarE on a cluster that runs: the copies of a forked job are the tasks of an array that its owner submitted.

All copies are sent to Hadar as jobs (section V-A), with their part of the work each. No two copies of a job are on one
node, and a node is idle only where no job has a step for it (theorem 3). Then the steps that are left are divided among
the copies that run (section V-B); the job itself counts what was done. A copy that runs is never sent away for having
no step: that would save nobody anything. One that waits stays held where those that run will be through before it could
help: the last round's rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from slurmsched.model import Code, Decision, Job, JobId, JobState, Ranked, Reason, Target
from slurmsched.policies.hadar.live import HadarSystem
from slurmsched.policies.hadare.dispatching import dispatched
from slurmsched.policies.hadare.families import Family, families
from slurmsched.policies.protocol import Situation

__all__ = ["HadarE"]


@dataclass(frozen=True, slots=True)
class HadarE:
    """A round with copies. Beside what Hadar remembers it remembers how many steps of each forked job are done."""

    name: str = "hadare"

    def decide(self, situation: Situation) -> Decision:
        types = sorted({gpu.type for node in situation.snapshot.nodes for gpu in node.gpus})
        forked = families(situation.jobs, situation.knowledge, types, _remembered(situation.state))
        needless = {copy.id: why for family in forked for copy, why in _needless(family, situation.restart_cost)}
        jobs = tuple(job for job in situation.jobs if job.id not in needless)
        decision = HadarSystem(name=self.name, forks=True).decide(replace(situation, jobs=jobs))
        targets = dict(decision.targets)
        for family in forked:
            targets |= _dispatch(family, decision.targets)
        return replace(
            decision,
            order=(*decision.order, *(Ranked(job, "no step is left for it") for job in needless)),
            targets=targets,
            waiting={**decision.waiting, **needless},
            state={**decision.state, "done": {family.job: _total(family.copies) - family.left for family in forked}},
        )


def _needless(family: Family, restart_cost: float) -> Iterator[tuple[Job, Reason]]:
    """Copies that wait, and would come too late: to start one takes as long as to start it anew."""
    running = [copy for copy in family.copies if copy.state is JobState.RUNNING]
    speed = sum(family.rate(copy.id, copy.shares) for copy in running)
    waiting = [copy for copy in family.copies if copy.state is JobState.PENDING]
    if not running:
        return
    soon = family.measured and family.left <= speed * restart_cost
    for place, copy in enumerate(waiting, start=len(running)):
        if soon or place >= family.left:
            yield copy, Reason(Code.COPIES_SUFFICE, {"job": family.job, "left": family.left})


def _dispatch(family: Family, targets: Mapping[JobId, Target]) -> Iterator[tuple[JobId, Target]]:
    """The targets of the family's copies, with the steps that each does."""
    placed = [targets[copy.id] for copy in family.copies if copy.id in targets]
    rates = [family.rate(target.job, target.shares) for target in placed]
    if not any(rates):
        return
    of_all: Mapping[str, str | int | float] = {
        "left": family.left,
        "job": family.job,
        "speed": "measured" if family.measured else "estimated",
    }
    for target, rate, steps in zip(placed, rates, dispatched(family.left, rates), strict=True):
        why = Reason(Code.DISPATCHED, {**of_all, "steps": steps, "part": f"{rate / sum(rates):.0%}"})
        yield target.job, replace(target, steps=steps, reasons=(*target.reasons, why))


def _total(copies: Iterable[Job]) -> int:
    return max(copy.hints.fork or 0 for copy in copies)


def _remembered(state: Mapping[str, object]) -> Mapping[JobId, int]:
    done = state.get("done")
    return {job: steps for job, steps in done.items() if isinstance(steps, int)} if isinstance(done, Mapping) else {}
