"""The table of policies."""

from __future__ import annotations

from dataclasses import fields

import pytest

from slurmsched.model import Reason, ReasonCode, Request
from slurmsched.policies import ORDERS, POLICIES, PolicyError, policy
from slurmsched.settings import PolicySettings
from tests.builders import job, node, share, situation

STAY = {number: Reason(ReasonCode.NO_REQUEUE) for number in ("1", "3")}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_policy_is_there_in_every_order(name: str, order: str) -> None:
    assert policy(name, order).name == name


@pytest.mark.parametrize(
    ("name", "order", "queues", "said"),
    [
        pytest.param(
            "nosuch",
            "las",
            (),
            "known are synergy, synergy-greedy, proportional, drf, tetris, tesserae, tesserae-ftf, tesserae-packed,"
            " fgd, tiresias, yarn-cs, gavel, hadar, hadare, gandiva-fair, unified, slurm",
            id="an unknown policy",
        ),
        pytest.param("synergy", "lifo", (), "known are fifo, srtf, las, ftf", id="an unknown order"),
        pytest.param("synergy", "las", (9.0, 3.0), "must ascend from above 0, not 9, 3", id="queues out of order"),
        pytest.param("synergy", "las", (0.0,), "must ascend from above 0", id="an empty first queue"),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(name: str, order: str, queues: tuple[float, ...], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        policy(name, order, queues)


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_a_job_that_lacks_cpus_beside_idle_gpus_is_told_so(name: str) -> None:
    nodes = [node("n1", busy=[0, 1], used_cpus=24), node("n2", busy=range(8))]
    why = policy(name).decide(situation(nodes, [job(1, gpus=4, cpus=4)])).waiting["1"]
    assert why.code is ReasonCode.BESIDE_GPUS
    assert why.sentence in ("waits: it lacks 4 CPUs beside 4 free GPUs", "waits: it lacks 12 CPUs beside 4 free GPUs")


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_a_waiting_job_names_only_what_stands_in_its_way(name: str) -> None:
    """Job 1 keeps the nodes that job 2 could use; the other GPUs are of a type that it does not ask for."""
    running = [
        job(1, 8, 24, on=[share("n1", 8, cpus=24)], run_time=60.0),
        job(3, 8, 24, on=[share("n2", 8, cpus=24, gpu_type="k80")], run_time=60.0),
    ]
    asked = job(2, request=Request(gpus=8, gpu_type="v100", gpus_per_node=8, cpus=8), submit_time=99.0)
    seen = situation([node("n1"), node("n2", gpu_type="k80")], [*running, asked], non_preemptible=STAY)
    why = policy(name, "fifo").decide(seen).waiting["2"].sentence
    assert "0 job" not in why
    assert "job 3" not in why


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_a_job_that_names_its_node_waits_for_who_is_there(name: str) -> None:
    running = [job(number, 8, 24, on=[share(f"n{number}", 8, cpus=24)], run_time=60.0) for number in (1, 3)]
    asked = job(2, request=Request(gpus=1, gpus_per_node=1, pinned=frozenset({"n1"})), submit_time=99.0)
    seen = situation([node("n1"), node("n3")], [*running, asked], non_preemptible=STAY)
    assert "job 3" not in policy(name, "fifo").decide(seen).waiting["2"].sentence


def test_the_settings_offer_every_order() -> None:
    choices = {one.name: one.metadata.get("choices") for one in fields(PolicySettings)}
    assert choices["order"] == tuple(ORDERS)
