"""What the simulator's journal knows of the service of jobs."""

from __future__ import annotations

import pytest

from slurmsched.model import Job, JobState, SchedulerState
from slurmsched.simulation.state_store import InMemoryStateStore
from tests.builders import job, share, snapshot


def running(gpu_type: str, since: float, run_time: float, **other: object) -> Job:
    return job(1, on=[share(gpus=2, gpu_type=gpu_type)], start_time=since, run_time=run_time, **other)  # type: ignore[arg-type]  # fields by name


COMPLETING = job(1, 2, state=JobState.COMPLETING, start_time=100.0, run_time=60.0)


@pytest.mark.parametrize(
    ("polls", "service"),
    [
        pytest.param([running("k80", 100, 30), running("k80", 100, 50)], {"k80": 100.0}, id="a run counts once"),
        pytest.param(
            [running("k80", 100, 50), running("v100", 300, 10)], {"k80": 100.0, "v100": 20.0}, id="each for its type"
        ),
        pytest.param([running("k80", 100, 50), COMPLETING], {"k80": 120.0}, id="its type is remembered as it ends"),
    ],
)
def test_service_is_counted_by_gpu_type(polls: list[Job], service: dict[str, float]) -> None:
    store = InMemoryStateStore()
    for seen in polls:
        store.record_poll(snapshot(jobs=[seen]))
    state = store.load_state(snapshot(jobs=[polls[-1]]))
    assert state.service_by_type == {"1": service}
    assert state.service == {"1": sum(service.values())}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"k80": 400.0, "v100": 60.0}, {"k80": 400.0, "v100": 80.0}, id="by type"),
        pytest.param({}, {"v100": 480.0}, id="in a recording that does not tell the types"),
    ],
)
def test_a_simulation_goes_on_from_what_jobs_had(before: dict[str, float], after: dict[str, float]) -> None:
    known = SchedulerState(service={"1": 460.0}, service_by_type={"1": before} if before else {})
    store = InMemoryStateStore.of_state(known, snapshot(jobs=[running("v100", 100, 30)]))
    later = snapshot(jobs=[running("v100", 100, 40)])
    store.record_poll(later)
    assert store.load_state(later).service_by_type == {"1": after}
