"""Probes of other CPU counts: which job of a work is one, with how many CPUs, and what is learnt of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile, SensitivityMatrix
from slurmsched.knowledge.probes import FEWEST_WAITING, MOST_RUNS, probe_profiles
from slurmsched.knowledge.usage import use_profiles
from slurmsched.model import (
    CpuNeed,
    ExpectedLength,
    Job,
    JobState,
    MeasuredRate,
    MeasuredUse,
    OpenStart,
    ReasonCode,
    SchedulerState,
)
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import (
    LearningSettings,
    ManageSettings,
    Mode,
    PolicySettings,
    RoundSettings,
    Settings,
)
from tests.builders import job, node, share, snapshot
from tests.prescribing import Anyone

HOUR = 3600.0
SETTINGS = Settings(
    manage=ManageSettings(partitions=("gpu",)),
    rounds=RoundSettings(mode=Mode.ENFORCE),
    policy=PolicySettings(system="synergy", order="fifo"),
)


RESTARTS = "cpus=probe,ckpt=usr1"
"""It can give back what GPUs beside it need."""


def tasks(first: int, count: int, cpus: int = 1, hint: str = "cpus=probe", **other: object) -> list[Job]:
    """Jobs of one work of alice that wait: one GPU each, an hour at most."""
    other = {"name": "sweep", "time_limit": 3600, "array_job": "7", **other}
    return [job(number, 1, cpus, hint=hint, submit_time=number, **other) for number in range(first, first + count)]


def rate(cpus: float, steps: float, **other: object) -> MeasuredRate:
    return replace(MeasuredRate("v100", 1, 1, cpus, 0.0, 3.0, 0.0, steps, 9.0), **other)  # type: ignore[arg-type]


def of_work(*widths: float) -> MeasuredUse:
    return MeasuredUse("name and GPUs", 0, 9.0, widths=widths)


def decided(jobs: list[Job], state: SchedulerState | None = None, nodes: int = 1, **learning: object) -> RoundResult:
    settings = replace(SETTINGS, learning=replace(LearningSettings(), **learning))  # type: ignore[arg-type]
    seen = snapshot([node(f"n{number}") for number in range(1, nodes + 1)], jobs)
    held = frozenset(one.id for one in jobs if one.state is JobState.PENDING)
    return run_round(seen, replace(state or SchedulerState(), held=held), settings, Knowledge(), Anyone())


def cpus_given(result: RoundResult) -> dict[str, int]:
    return {job: target.resources.cpus for job, target in result.decision.targets.items()}


def probed(jobs: list[Job], state: SchedulerState | None = None, longest: float = 4 * HOUR) -> dict[str, float]:
    """The CPUs for each GPU that jobs are tried with."""
    state = state or SchedulerState()
    known = Knowledge(by_use=use_profiles(state.use))
    seen = snapshot([node()], jobs)
    profiles = probe_profiles(seen, jobs, {one.id for one in jobs}, known, state, longest=longest)
    return {job: profile.matrices["v100"].cpus[-1] for job, profile in profiles.items() if profile.probes}


def test_one_task_has_twice_the_share_and_says_why_while_the_others_have_the_share() -> None:
    result = decided(tasks(1, 4, hint=RESTARTS))
    assert cpus_given(result) == {"1": 6, "2": 3, "3": 3, "4": 3}
    reasons = result.decision.targets["1"].reasons
    assert [(why.code, why.details) for why in reasons if why.code is ReasonCode.PROBES_CPUS] == [
        (ReasonCode.PROBES_CPUS, {"cpus": 6, "others": 3})
    ]
    said = "gets 6 CPUs, where others of its work have 3 CPUs, to measure how fast it is with them"
    assert said in next(why.sentence for why in reasons if why.code is ReasonCode.PROBES_CPUS)
    told = explain(result, "1")
    assert told.facts["speed"] == "not known: it is a probe (cpus=probe), by which that is measured"
    assert not any(ReasonCode.PROBES_CPUS in {why.code for why in result.decision.targets[n].reasons} for n in "234")


def test_idle_gpus_keep_their_share_of_cpus_beside_a_probe() -> None:
    shares = {"1": 3, "2": 3, "3": 3, "4": 3}
    assert cpus_given(decided(tasks(1, 4))) == shares, "four GPUs are idle, and it could not give back what they need"
    lean = job(9, 4, 4, hint="cpus=keep", submit_time=99)
    assert cpus_given(decided([*tasks(1, 4), lean])) == {**shares, "1": 6, "9": 4}, "nobody can use these"
    full = job(9, 4, 12, hint="cpus=keep", submit_time=99)
    assert cpus_given(decided([*tasks(1, 4, hint=RESTARTS), full])) == {**shares, "9": 12}, "all are of busy GPUs"


@pytest.mark.parametrize(
    ("jobs", "probes"),
    [
        pytest.param(tasks(1, 4), {"1": 6.0}, id="the first of those that wait"),
        pytest.param(tasks(1, 2), {}, id="too few wait to gain by it"),
        pytest.param(tasks(1, 4, hint="cpus=tune"), {}, id="the owner does not allow it"),
        pytest.param(tasks(1, 4, hint=""), {}, id="the owner says nothing"),
        pytest.param(tasks(1, 4, cpus=5), {"1": 10.0}, id="who asked for five is tried with ten"),
        pytest.param(tasks(1, 4, cpus=16), {"1": 24.0}, id="a node has no more than 24"),
        pytest.param(tasks(1, 4, cpus=24), {}, id="there is nothing more to try"),
        pytest.param(tasks(1, 4, time_limit=86400), {}, id="it may run for a day"),
        pytest.param(tasks(1, 4, time_limit=None), {}, id="nobody tells how long it runs"),
        pytest.param(
            tasks(1, 4, hint="cpus=probe,duration=1h", time_limit=86400), {"1": 6.0}, id="a hint says an hour"
        ),
        pytest.param(tasks(1, 2) + tasks(3, 2, user="bob"), {}, id="jobs of others are other work"),
        pytest.param(tasks(1, 4) + tasks(5, 4, user="bob"), {"1": 6.0, "5": 6.0}, id="one of each owner"),
        pytest.param(tasks(1, 4, name="wrap", array_job=""), {}, id="a name that nobody gave"),
        pytest.param(tasks(1, 4, hint="cpus=probe,fork=90"), {}, id="copies wait for each other"),
        pytest.param(
            [
                *tasks(1, 4),
                *(replace(one, allocations=(share(cpus=6),), state=JobState.RUNNING) for one in tasks(9, 1)),
            ],
            {"9": 6.0},
            id="one runs already, and keeps what it has",
        ),
        pytest.param(
            [*tasks(1, 4), *(replace(one, allocations=(share(),), state=JobState.RUNNING) for one in tasks(9, 1))],
            {"1": 6.0},
            id="one runs with its share",
        ),
    ],
)
def test_who_is_a_probe(jobs: list[Job], probes: dict[str, float]) -> None:
    assert probed(jobs) == probes


def test_no_second_probe_while_one_is_about_to_start() -> None:
    start = OpenStart((share(cpus=6),))
    assert probed(tasks(1, 5), SchedulerState(starting={"1": start})) == {"1": 6.0}


def test_probes_end_with_what_they_told_or_when_enough_have_run() -> None:
    def after(*widths: float) -> dict[str, float]:
        return probed(tasks(1, 4), SchedulerState(use={"1": of_work(*widths)}))

    assert after(3.0, 3.0) == {"1": 6.0}
    assert after(3.0, 6.0) == {}, "it was tried, and perhaps failed"
    assert after(*[3.0] * MOST_RUNS) == {}
    assert probed(tasks(1, 4), longest=0.0) == {}


def test_accounting_that_tells_of_cpus_ends_probes() -> None:
    told = MeasuredUse("name", 3, 9.0, (CpuNeed("v100", 4.0, spares=False),))
    assert probed(tasks(1, 4), SchedulerState(use=dict.fromkeys("1234", told))) == {}


def test_a_job_that_runs_with_what_accounting_tells_of_is_no_probe() -> None:
    told = MeasuredUse("name", 3, 9.0, (CpuNeed("v100", 6.0, spares=False),))
    runs = replace(tasks(1, 1, hint=RESTARTS)[0], state=JobState.RUNNING, allocations=(share(cpus=6),), start_time=0.0)
    state = SchedulerState(use=dict.fromkeys("1234", told))
    result = decided([runs, *tasks(2, 3, hint=RESTARTS)], state)
    assert cpus_given(result)["1"] == 6
    assert "probe" not in explain(result, "1").facts["speed"]
    assert "accounting: 3 earlier runs" in explain(result, "1").facts["speed"]


def test_earlier_runs_tell_that_a_job_with_a_long_limit_is_short() -> None:
    short = ExpectedLength(600.0, 600.0, 300.0, 900.0, 990.0, "name", 5)
    assert probed(tasks(1, 4, time_limit=86400), SchedulerState(lengths={"1": short})) == {"1": 6.0}


@pytest.mark.parametrize(
    ("rates", "cpus"),
    [
        pytest.param([rate(3, 10), rate(6, 19)], [6, 6, 6, 6], id="twice the CPUs, twice as fast: all have them"),
        pytest.param([rate(3, 10), rate(6, 10.2)], [2, 3, 3, 3], id="no faster: the share, and half of it is tried"),
        pytest.param([rate(2, 10), rate(3, 10), rate(6, 10)], [2, 2, 2, 2], id="half is as fast: all have it"),
        pytest.param([rate(2, 6), rate(3, 10), rate(6, 10)], [3, 3, 3, 3], id="half is slower: the share"),
    ],
)
def test_what_probes_reported_is_known_of_all(rates: list[MeasuredRate], cpus: list[int]) -> None:
    jobs = tasks(1, 4, hint=RESTARTS)
    result = decided(jobs, SchedulerState(family_rates={jobs[0].family: tuple(rates)}))
    assert [cpus_given(result)[str(number)] for number in range(1, 5)] == cpus


def test_rates_of_other_owners_or_works_measure_nothing() -> None:
    others = {"bob sweep": (rate(3, 1), rate(6, 9)), "alice other": (rate(3, 1), rate(6, 9))}
    jobs = tasks(1, 4, hint=RESTARTS)
    assert cpus_given(decided(jobs, SchedulerState(family_rates=others))) == {"1": 6, "2": 3, "3": 3, "4": 3}


def test_a_model_that_was_measured_is_not_probed() -> None:
    known = Profile("m", "", {"": SensitivityMatrix((1.0, 2.0), (), ((1.0,), (2.0,)))}, "measured")
    jobs = tasks(1, 4, hint="cpus=probe,model=m")
    found = probe_profiles(
        snapshot([node()], jobs), jobs, {"1", "2", "3", "4"}, Knowledge({"m": known}), SchedulerState(), longest=HOUR
    )
    assert found == {}


def test_without_accounting_nobody_counts_probes_so_there_are_none() -> None:
    assert cpus_given(decided(tasks(1, 4, hint=RESTARTS), accounting=False))["1"] == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["alice", "bob"]), st.sampled_from(["a", "b"]), st.integers(0, 8), st.booleans()),
        max_size=12,
    ),
    st.integers(1, 8),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 6.0, 8.0]), max_size=25),
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 6.0]), st.floats(0.01, 1e6)), max_size=4),
)
def test_there_is_one_probe_of_a_work_at_most_and_none_has_less_than_asked_for(
    drawn: list[tuple[str, str, int, bool]], asked: int, widths: list[float], rates: list[tuple[float, float]]
) -> None:
    jobs = [
        job(
            number,
            1,
            asked,
            hint="cpus=probe" if allowed else "",
            user=user,
            name=name,
            time_limit=3600,
            submit_time=number,
            on=[share(f"n{number}", [0], cpus=max(has, asked))] if has else [],
        )
        for number, (user, name, has, allowed) in enumerate(drawn)
    ]
    nodes = [node(f"n{number}") for number in range(max(len(jobs), 1))]
    measured = tuple(rate(cpus, steps) for cpus, steps in rates)
    state = SchedulerState(
        use={one.id: of_work(*widths) for one in jobs} if widths else {},
        family_rates={"alice a": measured, "bob b": measured},
    )
    seen = snapshot(nodes, jobs)
    found = probe_profiles(seen, jobs, {one.id for one in jobs}, Knowledge(), state, longest=HOUR)
    by_id = {one.id: one for one in jobs}
    assert all(by_id[one].hints.cpus_probed for one in found)
    started = [by_id[one] for one, profile in found.items() if profile.probes and not by_id[one].allocations]
    works = [(one.user, one.name) for one in started]
    assert len(works) == len(set(works))
    for one in started:
        alike = [
            other for other in jobs if (other.user, other.name) == (one.user, one.name) and other.hints.cpus_probed
        ]
        usual = max(3, asked)
        assert not any(other.allocations and not usual / 1.15 < other.allocated.cpus < usual * 1.15 for other in alike)
        assert sum(not other.allocations for other in alike) >= FEWEST_WAITING
        assert found[one.id].matrices["v100"].cpus[-1] >= asked
        assert len(widths) < MOST_RUNS
    result = decided(jobs, state, nodes=len(nodes))
    assert all(target.resources.cpus >= asked for target in result.decision.targets.values())
    taken = Counter[str]()
    for target in result.decision.targets.values():
        taken.update({on.node: on.resources.cpus for on in target.allocations})
    assert all(cpus <= 24 for cpus in taken.values())
