"""Who came in the place of others stays for the next round.

A restart was paid for that place, and has to pay off within a round. What the room of nodes and the limit on moves left
undone of one round's plan may be done in the next; but not at the cost of those for whom the first displaced somebody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from slurmsched.model import Code, Decision, JobState, Reason
from slurmsched.model.wording import span
from slurmsched.policies.protocol import Situation

__all__ = ["remembering", "with_newcomers_fixed"]

_CAME: Final = "came"


def with_newcomers_fixed(situation: Situation) -> Situation:
    """The same round, in which running jobs that displaced somebody in the last one are not displaced. What is
    remembered may be another system's, or nothing that makes sense: then it says nothing."""
    said = situation.state.get(_CAME)
    came = {job for job in said if isinstance(job, str)} if isinstance(said, list | tuple) else set[str]()
    fixed = {
        job.id: Reason(Code.MIN_RUN_TIME, {"run": span(job.run_time), "minimum": span(situation.period)})
        for job in situation.jobs
        if job.id in came and job.shares and job.state is JobState.RUNNING
    }
    return replace(situation, fixed={**fixed, **situation.fixed})


def remembering(decision: Decision) -> Decision:
    """With those who displaced somebody as the system's memory."""
    return replace(decision, state={_CAME: sorted(set(decision.victims.values()))})
