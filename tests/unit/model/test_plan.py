"""Operations and their undo."""

from __future__ import annotations

import pytest

from slurmsched.model import REASON_SENTENCES, Operation, Reason, ReasonCode, Verb

REASON = Reason(ReasonCode.START, {"nodes": "n1", "gpus": 2, "cpus": 6})


@pytest.mark.parametrize("verb", [Verb.UPDATE, Verb.PRIORITIZE, Verb.NOTE, Verb.WEIGH, Verb.CONFIGURE])
def test_undoing_a_setting_sets_what_was_before(verb: Verb) -> None:
    operation = Operation(verb, "7", REASON, before=1, after=2, gone=("3",), lead=60)
    undo = operation.undo()
    assert undo is not None
    assert (undo.verb, undo.before, undo.after, undo.gone, undo.lead) == (verb, 2, 1, (), 0)


@pytest.mark.parametrize(
    ("verb", "undo"),
    [(Verb.HOLD, Verb.RELEASE), (Verb.RELEASE, Verb.HOLD), (Verb.REQUEUE, Verb.RELEASE)],
)
def test_holds_and_releases_undo_each_other(verb: Verb, undo: Verb) -> None:
    taken_back = Operation(verb, "7", REASON).undo()
    assert taken_back is not None
    assert taken_back.verb is undo


def test_a_signal_cannot_be_taken_back() -> None:
    assert Operation(Verb.NOTIFY, "7", REASON, after="usr1").undo() is None


def test_every_code_has_a_sentence_and_a_missing_detail_does_not_fail_a_round() -> None:
    assert set(REASON_SENTENCES) == set(ReasonCode)
    assert Reason(ReasonCode.START).sentence == "starts on ? with ? GPUs, ? CPUs"
    assert Operation(Verb.RELEASE, "7", REASON).sentence == "job 7 starts on n1 with 2 GPUs, 6 CPUs"


@pytest.mark.parametrize(
    ("code", "details", "sentence"),
    [
        (ReasonCode.ARRAY_LIMIT, {"limit": 1}, "waits: its array runs at most 1 task at a time"),
        (ReasonCode.PROPORTIONAL, {"cpus": 3}, "gets its GPU-proportional share of 3 CPUs"),
        (ReasonCode.FREED_SOON, {"nodes": "n", "jobs": "7"}, "is placed on n and waits for job 7 to leave"),
        (ReasonCode.FREED_SOON, {"nodes": "n", "jobs": "7, 8_1"}, "is placed on n and waits for jobs 7, 8_1 to leave"),
        (ReasonCode.FREED_SOON, {"jobs": "another job"}, "is placed on ? and waits for another job to leave"),
    ],
)  # fmt: skip
def test_a_sentence_has_the_right_plurals(
    code: ReasonCode, details: dict[str, str | int | float], sentence: str
) -> None:
    assert Reason(code, details).sentence == sentence
