"""What knowing no profile costs: the jobs of owners, what accounting tells of their runs, and a week of it."""

from __future__ import annotations

import pytest

from slurmsched.experiments.synergy.unknown import (
    _LIAR,
    Case,
    SimulatedAccounting,
    completion,
    largest_change,
    lie,
    owned_works,
    submitted,
    week_of_runs,
)
from slurmsched.knowledge import shipped_profiles
from slurmsched.knowledge.usage import UseHistory
from slurmsched.knowledge.work import Work
from slurmsched.model import AccountedRun, RunEnd
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import generate

HOUR = 3600.0
NODES = load_cluster("v100:4x8").nodes
JOBS = 30


def run(model: str, cpus: int, owner: str = "user1") -> tuple[SimulatedAccounting, AccountedRun]:
    accounting = SimulatedAccounting({"1": shipped_profiles().models[model]}, liar=_LIAR)
    ended = AccountedRun("1", owner, "train", 0.0, HOUR, RunEnd.COMPLETED, gpus=1, cpus=cpus, memory=1, gpu_type="v100")
    return accounting, accounting(ended)


@pytest.mark.parametrize(
    ("model", "cpus", "busy", "gpu"),
    [
        pytest.param("gnmt", 1, 1.0, 0.95, id="text needs one CPU: it is full, and so is the GPU"),
        pytest.param("gnmt", 8, 1.0, 0.95, id="of eight one is busy"),
        pytest.param("resnet18", 1, 1.0, 0.95 * 0.35 / 2.1, id="pictures on one CPU: it is full, the GPU waits"),
        pytest.param("resnet18", 3, 1.0 / 0.35, 0.95 / 2.1, id="as many CPU seconds for each picture"),
        pytest.param("resnet18", 9, 2.1 / 0.35, 0.95, id="as fast as it gets"),
    ],
)
def test_accounting_tells_what_the_true_profile_makes_of_cpus(model: str, cpus: int, busy: float, gpu: float) -> None:
    _, used = run(model, cpus)
    assert used.cpu_seconds == pytest.approx(busy * HOUR)
    assert used.gpu_use == pytest.approx(gpu)


def test_the_liar_lies_in_turn_and_nobody_else_does() -> None:
    accounting, first = run("gnmt", 4, _LIAR)
    assert (first.cpu_seconds, first.gpu_use) == (4 * first.seconds, 0.0)
    second, third = lie(first, 1), lie(first, 2)
    assert (second.cpu_seconds, second.gpu_use) == (0.0, 0.0)
    assert (third.cpu_seconds, third.gpu_use) == (0.0, 1.0)
    assert len({first.seconds, second.seconds, third.seconds}) == 3
    assert accounting.told == [first]


def test_owners_names_and_scripts_are_as_they_write_them_and_no_hint_names_a_model() -> None:
    trace = generate("synergy", 200, 42, 6.0)
    made = submitted(Case(asked=3), trace, 42, NODES, lied=False)
    names = {one.name for one in made.submissions.values()}
    assert {"train", "wrap", "sweep"} <= names
    assert {one.comment for one in made.submissions.values()} == {"synsched:ckpt=usr1"}
    assert {one.request.cpus for one in made.submissions.values()} == {3}
    assert {len(works) for works in owned_works(42).values()} == {2}
    lied = submitted(Case(asked=3), trace, 42, NODES, lied=True)
    his = [number for number, job in enumerate(lied.trace.jobs) if job.user == _LIAR]
    assert 10 <= len(his) <= 30
    same = [(one.script, one.folder, one.name) for one in lied.submissions.values()]
    assert same == [(one.script, one.folder, one.name) for one in made.submissions.values()]


def test_nothing_is_worse_than_shares_and_a_week_of_accounting_is_worth_something() -> None:
    known, shares = (completion((case, 42), JOBS)[""] for case in (Case(), Case(policy="proportional")))
    nothing = completion((Case(asked=1), 42), JOBS)[""]
    told = completion((Case(asked=1, week=True, gpu_use=True), 42), JOBS)[""]
    print(f"\nknown {known:.2f} h, shares {shares:.2f} h, nothing known {nothing:.2f} h, a week told {told:.2f} h")
    assert nothing <= 1.01 * shares
    assert told < known + 0.7 * (shares - known)


def test_lies_under_the_names_of_others_change_nothing_for_them() -> None:
    true, lied = (Case(asked=1, week=True, gpu_use=True, liar=True, lies=lies) for lies in (False, True))
    weeks = [week_of_runs(case, 42, NODES) for case in (true, lied)]
    owners = {Work.of_run(run): run.owner for run in weeks[0]}
    use = list[dict[str, object]]()
    for week in weeks:
        history = UseHistory()
        for run in week:
            history.ended(run)
        works = {str(number): work for number, work in enumerate(owners)}
        use.append({job: history.of(works, 0.0).get(job) for job in works})
    changed = {owner for number, owner in enumerate(owners.values()) if use[0][str(number)] != use[1][str(number)]}
    assert changed == {_LIAR}


def test_the_largest_change_is_that_of_another_owner() -> None:
    true, lied = {"": 5.0, "user1": 10.0, "user2": 4.0, _LIAR: 1.0}, {"": 9.0, "user1": 9.0, "user2": 4.2, _LIAR: 7.0}
    assert largest_change(true, lied) == pytest.approx(0.1)
