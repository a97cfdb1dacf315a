"""The table of policies."""

from __future__ import annotations

from dataclasses import fields

import pytest

from slurmsched.policies import ORDERS, POLICIES, PolicyError, policy
from slurmsched.settings import PolicySettings


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
            " fgd, tiresias, yarn-cs, gavel, hadar, hadare, gandiva-fair, slurm",
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


def test_the_settings_offer_every_order() -> None:
    choices = {one.name: one.metadata.get("choices") for one in fields(PolicySettings)}
    assert choices["order"] == tuple(ORDERS)
