"""What earlier runs used: which runs count for a job, and what follows of CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.usage import cpu_need, kinds_of_use, measured_use, use_profiles, with_memory_in_use
from slurmsched.knowledge.work import Work, WorkKind
from slurmsched.model import AccountedRun, CpuNeed, MeasuredUse, RunEnd, SchedulerState, work_of
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.resources import PoolKind
from slurmsched.policies.sizes import Proportional, Sizing, Tune, demand_range, lends_cpus
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import ManageSettings, Mode, RoundSettings, Settings
from tests.builders import GIB, job, node, profile, snapshot
from tests.prescribing import Anyone

HOUR, DAY = 3600.0, 86400.0
SERVER = PoolKind("v100", 8, 24, 500 * GIB)
"""Three CPUs for each GPU."""


def run(had: float, used: float, gpu: float | None = 0.9, **other: object) -> AccountedRun:
    """An hour on two V100 with so many CPUs for each GPU, of which so many were busy."""
    fields: dict[str, object] = {"seconds": HOUR, "ended": 0.0, "end": RunEnd.COMPLETED, "gpu_type": "v100"}
    fields |= {"gathered": True, "gpu_use": gpu, "memory": 8 * GIB} | other
    seconds = float(str(fields["seconds"]))
    return AccountedRun("1", "alice", "train", gpus=2, cpus=round(2 * had), cpu_seconds=2 * used * seconds, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "need"),
    [
        pytest.param([run(1, 0.99, 0.2)], (2.0, False), id="its CPU was full and its GPUs idle: it may have two"),
        pytest.param([run(1, 0.99, None)], (2.0, False), id="of the GPUs nothing is known"),
        pytest.param([run(1, 0.99, 0.9)], None, id="the GPUs were busy all the same"),
        pytest.param([run(1, 0.99, 0.2, gathered=False)], (2.0, False), id="a lower bound is enough to be full"),
        pytest.param([run(1, 1, 0.2), run(2, 2, 0.21)], (1.0, False), id="with two it was full too, GPUs no busier"),
        pytest.param(
            [run(1, 1, 0.2), run(2, 2, 0.4, seconds=3 * HOUR)],
            (4.0, False),
            id="with two it was full and its GPUs twice as busy, however long it ran",
        ),
        pytest.param(
            [run(1, 1, None)] * 3 + [run(2, 2, None)] * 3, (1.0, False), id="with two it was full too, and no quicker"
        ),
        pytest.param(
            [run(1, 1, None)] * 3 + [run(2, 2, None, seconds=HOUR / 2)] * 3,
            (4.0, False),
            id="with two it was full and quicker",
        ),
        pytest.param(
            [run(1, 1, None, seconds=HOUR * long) for long in (1, 3, 9)]
            + [run(2, 2, None, seconds=HOUR * long) for long in (1, 4, 20)],
            (2.0, False),
            id="lengths differ by more than two CPUs may explain: it keeps these",
        ),
        pytest.param(
            [run(1, 1, None), run(2, 2, None)], (2.0, False), id="one length of each tells nothing: it keeps two"
        ),
        pytest.param(
            [run(1, 1, 0.2), run(4, 2, None)], (4.0, False), id="with four it was not: these stay, none is known spare"
        ),
        pytest.param([run(8, 1)] * 3, (2.0, True), id="three left CPUs idle, their GPUs were busy: two are enough"),
        pytest.param([run(8, 2.5)] * 3, (5.0, True), id="twice what was busy"),
        pytest.param([run(8, 1), run(8, 1), run(8, 3)], (6.0, True), id="the one that used most decides"),
        pytest.param([run(8, 1)] * 2, None, id="two runs are too few"),
        pytest.param([run(8, 1, None)] * 2, None, id="of the GPUs nothing is known, and two runs are too few"),
        pytest.param([run(8, 1, 0.1)] * 3, None, id="the GPUs were idle too: nobody knows what it waited for"),
        pytest.param([run(8, 1, gathered=False)] * 3, None, id="not all processes were watched"),
        pytest.param([run(8, 1, seconds=300.0)] * 3, None, id="the runs were short"),
        pytest.param([run(8, 1, gpu_type="")] * 3, None, id="nobody knows on which GPUs: a faster one needs more"),
        pytest.param([run(8, 1)] * 3 + [run(4, 4, 0.3)], (8.0, True), id="with four one was full: eight again"),
        pytest.param(
            [run(8, 1)] * 3 + [run(2, 1, 0.7)], (8.0, True), id="with two its GPUs were less busy: eight again"
        ),
        pytest.param([run(8, 1)] * 3 + [run(2, 1, 0.85)], (2.0, True), id="with two its GPUs were as busy: two"),
        pytest.param(
            [run(8, 1)] * 3 + [run(2, 1, 0.7), run(4, 1)], (4.0, True), id="less busy with two, as busy with four: four"
        ),
        pytest.param(
            [run(8, 1)] * 3 + [run(8, 5, None)], (5.0, True), id="one used five, busy GPUs or not: those stay"
        ),
        pytest.param(
            [run(8, 6, 0.95)] * 3 + [run(3, 3, 0.3)] * 9, (8.0, True), id="it lent five of eight and lacked them"
        ),
        pytest.param([run(8, 8, 0.75)] * 3 + [run(3, 3, 0.3)] * 9, (16.0, False), id="it lacked even more than these"),
        pytest.param([run(8, 3)] * 3 + [run(3, 3, 0.9)] * 9, (6.0, True), id="it lent five and was no slower"),
        pytest.param([run(3, 2)] * 3, (3.0, True), id="no more is spare than there was"),
    ],
)
def test_what_cpus_runs_need(runs: Sequence[AccountedRun], need: tuple[float, bool] | None) -> None:
    assert cpu_need(runs) == (need and CpuNeed("v100", *need))


def test_idle_cpus_beside_gpus_of_which_nothing_is_known_show_what_is_enough_for_who_asked_for_less() -> None:
    assert cpu_need([run(8, 1, None)] * 3) == CpuNeed("v100", 2.0, spares=False, suffices=True)
    assert cpu_need([run(8, 1, None)] * 3 + [run(4, 4, None)]) == CpuNeed("v100", 8.0, spares=False, suffices=True)
    assert cpu_need([run(8, 1, None)] * 3 + [run(8, 5, None, seconds=60.0)]) == CpuNeed("v100", 5.0, False, True)
    assert cpu_need([run(8, 1, None, gathered=False)] * 3) is None
    assert cpu_need([run(8, 1, None, gpu_type="")] * 3) is None


def test_time_of_processes_that_nobody_measured_tells_nothing() -> None:
    assert cpu_need([replace(run(8, 1), cpu_seconds=None)] * 3) is None


WORK = Work(owner="alice", name="train-7", script="abc", folder="/home/alice", model="resnet50", gpus=2)
NEAR = tuple(key for _, key in kinds_of_use(WORK))


def kinds(work: Work) -> list[WorkKind]:
    return [kind for kind, _ in kinds_of_use(work)]


def test_kinds_go_from_the_nearest_to_the_widest_and_never_to_another_owner() -> None:
    assert kinds(WORK) == [WorkKind.SCRIPT, WorkKind.NAME_AND_GPUS, WorkKind.NAME, WorkKind.MODEL]
    assert {key[0] for key in NEAR} == {"alice"}
    assert kinds(Work(owner="alice", name="train-7")) == [WorkKind.NAME_AND_GPUS, WorkKind.NAME]
    assert kinds(Work(owner="alice", name="wrap", script="abc", folder="/home", array=True)) == []


def test_numbers_in_names_and_names_that_nobody_gave_tell_nothing() -> None:
    assert work_of("train-17-v2") == work_of("train-9-v30") == "train-#-v#"
    assert work_of("wrap") == work_of("BASH") == ""


def test_the_nearest_kind_that_tells_anything_counts() -> None:
    near, wide = [run(8, 1)] * 3, [run(8, 3)] * 5
    runs = {NEAR[0]: near, NEAR[2]: near + wide}
    use = measured_use(kinds_of_use(WORK), runs, DAY)
    assert use == MeasuredUse("script, folder and GPUs", 3, 0.0, (CpuNeed("v100", 2.0, spares=True),))
    fewer = measured_use(kinds_of_use(WORK), {NEAR[0]: near[:1], NEAR[2]: near + wide}, DAY)
    assert fewer == MeasuredUse("name", 8, 0.0, (CpuNeed("v100", 6.0, spares=True),))


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param([run(8, 1, peak_memory=9)], id="it ran once"),
        pytest.param([run(8, 1, peak_memory=9, gathered=False)] * 3, id="not all of its processes were watched"),
        pytest.param([run(8, 1, peak_memory=9, seconds=90.0)] * 3, id="its runs were short"),
    ],
)
def test_an_edited_script_does_not_hide_what_runs_of_its_name_told_of_cpus(edited: list[AccountedRun]) -> None:
    before = [run(8, 1, peak_memory=40)] * 3
    use = measured_use(kinds_of_use(WORK), {NEAR[0]: edited, NEAR[1]: before + edited}, DAY)
    needs = (CpuNeed("v100", 2.0, spares=True),)
    widths = (8.0,) * (3 + len(edited))
    told = MeasuredUse("name and GPUs", 3 + len(edited), 0.0, needs, memory=4.5, widths=widths)
    assert use == told, "its own memory"
    use = measured_use(kinds_of_use(WORK), {NEAR[0]: edited, NEAR[1]: edited}, DAY)
    told = MeasuredUse("script, folder and GPUs", len(edited), 0.0, (), memory=4.5, widths=widths[3:])
    assert use == told, "nobody told of CPUs"


def test_jobs_with_only_their_model_in_common_give_nothing_away() -> None:
    assert measured_use(kinds_of_use(WORK), {NEAR[3]: [run(8, 1)] * 9}, DAY) is None
    grows = measured_use(kinds_of_use(WORK), {NEAR[3]: [run(1, 1, 0.2)]}, DAY)
    assert grows is not None
    assert grows.needs == (CpuNeed("v100", 2.0, spares=False),)
    assert measured_use(kinds_of_use(WORK), {NEAR[3]: [run(8, 1, None)] * 9}, DAY) is None


@pytest.mark.parametrize(
    "useless",
    [
        pytest.param(run(1, 1, 0.2, end=RunEnd.FAILED), id="it failed"),
        pytest.param(run(1, 1, 0.2, seconds=30.0), id="it was over at once"),
        pytest.param(run(1, 1, 0.2, ended=-90 * DAY), id="it was three months ago"),
    ],
)
def test_runs_that_tell_nothing(useless: AccountedRun) -> None:
    assert measured_use(kinds_of_use(WORK), {NEAR[2]: [useless]}, 0.0) is None


def test_what_other_gpus_need_is_another_question() -> None:
    runs = {NEAR[2]: [run(8, 1)] * 3 + [run(8, 4, gpu_type="a100")] * 3}
    use = measured_use(kinds_of_use(WORK), runs, DAY)
    assert use is not None
    assert use.needs == (CpuNeed("a100", 8.0, spares=True), CpuNeed("v100", 2.0, spares=True))
    known = use_profiles({"1": use})["1"]
    assert known.matrix("k80") is None


def sizes(
    use: MeasuredUse,
    asked: int,
    hint: bool | None = None,
    sizing: Sizing | None = None,
    *,
    checkpoint: bool = False,
    **request: Any,
) -> tuple[int, int]:
    """The least and the best number of CPUs of a job with one GPU."""
    asks = replace(job(1, 1, asked).original_request, **request)
    known = use_profiles({"1": use})["1"]
    gang = gang_of(asks, known, memory_tunable=False, cpus_tunable=hint, has_checkpoint=checkpoint)
    demand = demand_range(sizing or Tune(), gang, SERVER)
    return demand.minimum.cpus, demand.best.cpus


def used(cpus: float, *, spares: bool, suffices: bool = False, memory: float = 0.0) -> MeasuredUse:
    return MeasuredUse("name", 3, 0.0, (CpuNeed("v100", cpus, spares, suffices),), memory)


@pytest.mark.parametrize(
    ("use", "asked", "hint", "cpus"),
    [
        pytest.param(used(2, spares=True), 8, None, (3, 8), id="under pressure it has its share"),
        pytest.param(used(5, spares=True), 8, None, (5, 8), id="or what it needs, if that is more"),
        pytest.param(used(2, spares=True), 8, True, (2, 2), id="cpus=tune: it has what it needs"),
        pytest.param(used(2, spares=True), 8, False, (8, 8), id="cpus=keep: it has what it asked for"),
        pytest.param(used(1, spares=True), 2, None, (2, 2), id="it asked for less than its share"),
        pytest.param(used(2, spares=False), 1, None, (1, 3), id="it may use its share at least"),
        pytest.param(used(8, spares=False), 4, None, (4, 8), id="four were full: eight, if there are"),
        pytest.param(used(2, spares=False), 6, None, (6, 6), id="nothing is taken from it"),
        pytest.param(used(2, spares=False, suffices=True), 1, None, (1, 2), id="two are enough: its share is three"),
        pytest.param(used(2, spares=False, suffices=True), 8, None, (8, 8), id="it asked for eight: these stay"),
        pytest.param(used(2, spares=False, suffices=True), 8, True, (8, 8), id="cpus=tune: an average is no proof"),
    ],
)
def test_sizes_follow_from_use(use: MeasuredUse, asked: int, hint: bool | None, cpus: tuple[int, int]) -> None:
    assert sizes(use, asked, hint) == cpus


@pytest.mark.parametrize(
    ("use", "asked", "hint", "cpus"),
    [
        pytest.param(used(2, spares=True), 8, None, (2, 8), id="two are enough: it lends six"),
        pytest.param(used(2, spares=True), 3, None, (2, 3), id="two are enough, and it asked for its share"),
        pytest.param(used(6, spares=True), 8, None, (3, 8), id="it needs six: it lends five"),
        pytest.param(used(16, spares=False), 8, None, (3, 16), id="eight were full: it lends five"),
        pytest.param(used(2, spares=False, suffices=True), 8, None, (3, 8), id="of its GPUs nothing is known"),
        pytest.param(MeasuredUse("name", 1, 0.0, (), 9.0), 8, None, (3, 8), id="its runs did not tell what it needs"),
        pytest.param(used(8, spares=False), 2, None, (2, 8), id="it asked for less than its share"),
        pytest.param(used(6, spares=True), 8, True, (6, 6), id="cpus=tune: it has what it needs"),
        pytest.param(used(6, spares=True), 8, False, (8, 8), id="cpus=keep: it has what it asked for"),
    ],
)
def test_a_job_with_a_checkpoint_lends_the_cpus_above_its_share(
    use: MeasuredUse, asked: int, hint: bool | None, cpus: tuple[int, int]
) -> None:
    assert sizes(use, asked, hint, checkpoint=True) == cpus


def test_only_a_job_that_gets_cpus_back_and_whose_work_was_measured_lends_them() -> None:
    full = used(16, spares=False)
    assert sizes(full, 8) == (8, 16), "it has no checkpoint"
    assert sizes(replace(full, kind="model"), 8, checkpoint=True) == (8, 16), "only its model was measured"
    assert sizes(full, 8, None, Proportional(), checkpoint=True) == (8, 8), "nobody would give them back"
    assert sizes(full, 8, checkpoint=True, memory_per_cpu=GIB, memory=8 * GIB)[0] == 8, "it would lose memory too"
    gang = gang_of(job(1, 1, 8).original_request, None, memory_tunable=False, has_checkpoint=True)
    assert not lends_cpus(gang, SERVER), "nothing was measured"


def test_memory_is_never_less_than_a_fifth_more_than_was_in_use() -> None:
    known = use_profiles({"1": used(2, spares=True, memory=100.0 * GIB)})["1"]
    demand = Tune().demand_range(gang_of(job(1).original_request, known, memory_tunable=False), SERVER)
    assert demand.minimum.memory == demand.best.memory == 120 * GIB
    much = use_profiles({"1": used(2, spares=True, memory=900.0 * GIB)})["1"]
    demand = Tune().demand_range(gang_of(job(1).original_request, much, memory_tunable=False), SERVER)
    assert demand.minimum.memory == 500 * GIB, "no more than a node has"


def test_memory_that_is_a_cache_never_shrinks_below_what_runs_had_in_use() -> None:
    """A measured sensitivity tells how much of the data is cached, and nothing of what processes hold."""
    of_cache = profile("m", {1: 1, 3: 1}, {10: 1, 60: 1})
    use = use_profiles({"1": MeasuredUse("name", 5, 0.0, (), memory=100.0 * GIB)})
    asking = job(1, 1, 3, 200 * GIB, hint="model=m,mem=tune")
    known = Knowledge({"m": of_cache}, by_use=use)
    assert with_memory_in_use(known, [job(1, 1, 3, 200 * GIB, hint="model=m")]) == {}, "its memory stays as it is"
    floors = with_memory_in_use(known, [asking])
    sized = []
    for found in (of_cache, floors["1"]):
        demand = demand_range(Tune(), gang_of(asking.original_request, found, memory_tunable=True), SERVER)
        sized.append((demand.minimum.memory // GIB, demand.best.memory // GIB))
    assert sized == [(10, 10), (120, 120)]
    state = SchedulerState(use={"1": MeasuredUse("name", 5, 0.0, (), memory=100.0 * GIB)}, held=frozenset({"1"}))
    settings = Settings(manage=ManageSettings(partitions=("gpu",)), rounds=RoundSettings(mode=Mode.ENFORCE))
    result = run_round(snapshot([node()], [asking]), state, settings, Knowledge({"m": of_cache}), Anyone())
    assert result.decision.targets["1"].resources.memory >= 120 * GIB


def test_use_comes_after_what_was_measured_and_before_a_rule_of_thumb() -> None:
    use = {"1": Profile("", "", profile("x", {2: 1}).matrices, "accounting: 3 runs", spares=True)}
    thumb = replace(profile("bert", {1: 1}), source="rule of thumb")
    measured = replace(thumb, source="measured")
    one = job(1, hint="model=bert")
    assert Knowledge({"bert": thumb}, by_use=use).profile(one) is use["1"]
    assert Knowledge({"bert": thumb}, by_use=use).rate_profile(one) is thumb, "it says nothing of GPU types"
    assert Knowledge({"bert": measured}, by_use=use).profile(one) is measured
    assert Knowledge(by_use=use).profile(one) is use["1"]


def test_equal_use_gives_one_profile() -> None:
    profiles = use_profiles({"1": used(2, spares=True), "2": used(2, spares=True)})
    assert profiles["1"] is profiles["2"]


@given(
    st.lists(st.tuples(st.integers(1, 24), st.floats(0, 1), st.none() | st.floats(0, 1), st.booleans()), max_size=12),
    st.integers(1, 24),
    st.booleans(),
)
def test_no_job_accepts_less_than_its_share_or_what_it_asked_for_unless_runs_left_cpus_idle(
    drawn: list[tuple[int, float, float | None, bool]], asked: int, checkpoint: bool
) -> None:
    runs = [run(had, had * part, gpu, gathered=gathered) for had, part, gpu, gathered in drawn]
    use = measured_use(kinds_of_use(WORK), {NEAR[2]: runs}, DAY)
    if use is None or not use.needs:
        return
    least, best = sizes(use, asked, checkpoint=checkpoint)
    assert least <= best
    need = use.needs[0]
    proven = ceil(need.cpus) if need.spares and checkpoint else asked  # which a restart gives back
    assert least >= min(asked, 3, proven)
    assert best >= asked
    if checkpoint and need.spares:
        assert least <= min(asked, 3)
    elif checkpoint:
        assert least == min(asked, 3)
    elif not need.spares:
        assert least == asked
    else:
        assert least >= min(asked, max(run.cpu_seconds or 0 for run in runs if run.gathered) / HOUR / 2)


def test_a_profile_names_who_told_how_busy_gpus_were_and_when_the_last_run_was() -> None:
    runs = [run(8, 1, gpu_source="jobstats"), run(8, 1, gpu_source="jobstats"), run(8, 1, gpu_source="dcgm-exporter")]
    use = measured_use(kinds_of_use(WORK), {NEAR[2]: [replace(one, ended=9.0) for one in runs]}, DAY)
    assert use is not None
    known = use_profiles({"1": use})["1"]
    assert known.source.endswith("GPU use by jobstats (2) and dcgm-exporter (1)")
    assert (known.last_run, known.was_measured) == (9.0, True)
