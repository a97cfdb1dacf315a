"""The policy that docs/policies.md writes as an example, taken from the page itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slurmsched.policies import POLICIES, Policy, policies, policy
from tests.builders import job, node, situation

PAGE = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
CODE, ROW = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
MOST_LINES = 40


@pytest.fixture
def wsjf(monkeypatch: pytest.MonkeyPatch) -> Policy:
    """The example, made from its row in the table."""
    names: dict[str, Any] = dict(vars(policies))
    exec(CODE, names)  # noqa: S102 the page's own code is what is tested
    row = eval(f"{{{ROW}}}", names)  # noqa: S307
    monkeypatch.setattr(policies, "POLICIES", {**POLICIES, **row})
    return policy("wsjf")


def test_it_is_short() -> None:
    lines = [line for line in CODE.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES, f"{len(lines)} lines"


def test_the_job_with_the_least_work_for_its_priority_comes_first(wsjf: Policy) -> None:
    jobs = [
        job(1, hint="duration=8h", priority=10, gpus=1),
        job(2, hint="duration=1h", priority=1, gpus=2),
        job(3, hint="duration=1h", priority=1, gpus=1),
    ]
    decision = wsjf.decide(situation([node("n1", gpus=2)], jobs))
    assert [ranked.job for ranked in decision.order] == ["1", "3", "2"]
    assert set(decision.targets) == {"1", "3"}


def test_a_job_goes_where_the_least_is_left(wsjf: Policy) -> None:
    waiting = job(2)
    decision = wsjf.decide(situation([node("n1", gpus=4), node("n2", gpus=4, busy=(0, 1))], [waiting]))
    assert decision.targets["2"].nodes == ("n2",)
