"""The hint grammar: what it reads, what it says about the rest, and that nothing else comes through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.model import NO_HINTS, CheckpointSignal, Hints, parse_hints, render_hints
from slurmsched.model.hints import MAX_HINT_LENGTH


@pytest.mark.parametrize(
    ("comment", "hints"),
    [
        pytest.param("", NO_HINTS, id="no comment, no hints"),
        pytest.param("nightly run", NO_HINTS, id="other words are left alone"),
        pytest.param("synsched:", Hints(given=True), id="the bare word opts in"),
        pytest.param(
            "x synsched:model=resnet50,ckpt=usr1 y",
            Hints(given=True, model="resnet50", checkpoint=CheckpointSignal.USR1),
            id="the design's example, between other words",
        ),
        pytest.param(
            "synsched:ckpt=term@5m,duration=2h,move=no",
            Hints(given=True, checkpoint=CheckpointSignal.TERM, lead=300, duration=7200, move=False),
            id="times have units",
        ),
        pytest.param(
            "synsched:model=a synsched:model=b", Hints(given=True, model="a"), id="the first word is the hint"
        ),
        pytest.param(
            "synsched:pack=no,move=yes", Hints(given=True, pack=False, move=True), id="GPUs for itself, wherever"
        ),
        pytest.param(
            "synsched:mem=tune,cpus=keep,held=hook",
            Hints(given=True, memory_tunable=True, cpus_tunable=False, held_by_hook=True),
            id="memory may be tuned, the hook holds",
        ),
        pytest.param(
            "synsched:fork=50000", Hints(given=True, fork=50_000), id="the tasks of an array are copies of one job"
        ),
        pytest.param(
            "Synsched:MODEL=ResNet50,ckpt=SIGUSR1@60,Move=NO",
            Hints(given=True, model="resnet50", checkpoint=CheckpointSignal.USR1, lead=60, move=False),
            id="upper case is lower case, and a signal may have its SIG",
        ),
        pytest.param("synsched:duration=2:00:00", Hints(given=True, duration=7200), id="hours, minutes, seconds"),
        pytest.param("synsched:duration=90:30", Hints(given=True, duration=5430), id="minutes and seconds, as sbatch"),
        pytest.param("synsched:duration=1-12", Hints(given=True, duration=129_600), id="days and hours"),
        pytest.param("synsched:duration=1-2:30", Hints(given=True, duration=95_400), id="days, hours, minutes"),
        pytest.param(
            "synsched:ckpt=usr1@1:30", Hints(given=True, checkpoint=CheckpointSignal.USR1, lead=90), id="lead"
        ),
        pytest.param(
            "synsched:move=no my words model=x", Hints(given=True, move=False), id="words of one's own may have ="
        ),
        pytest.param("synsched:HELD=hook", Hints(given=True, held_by_hook=True, marks_only=True), id="a loud mark"),
        pytest.param("synsched:cpus=Probe", Hints(given=True, cpus_probed=True), id="other CPUs may be tried"),
        pytest.param("synsched:idle=last", Hints(given=True, idle_last=True), id="last while its GPUs are idle"),
    ],
)
def test_reads(comment: str, hints: Hints) -> None:
    assert parse_hints(comment) == hints


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        pytest.param("synsched:modle=resnet50", "unknown hint 'modle': known are model,", id="a typo in a key"),
        pytest.param("synsched:ckpt=usr3", "hint ckpt='usr3': expected usr1, usr2", id="no such signal"),
        pytest.param("synsched:ckpt=usr1@soon", "hint ckpt='usr1@soon': expected", id="a lead that is no time"),
        pytest.param("synsched:model=", "hint model has no value", id="a key without value"),
        pytest.param("synsched:model=a,model=b", "hint model given twice: the first counts", id="twice"),
        pytest.param("synsched:model=$(reboot)", "hint model='$(reboot)': expected a name", id="a command is no name"),
        pytest.param("synsched:fork=0", "hint fork='0': expected the steps", id="no job has no steps"),
        pytest.param("synsched:duration=1:2:3:4", "hint duration='1:2:3:4': expected a time", id="too many colons"),
        pytest.param("synsched:duration=2:", "hint duration='2:': expected a time", id="a colon too many"),
        pytest.param("synsched:model=a ckpt=usr1", "hint 'ckpt=usr1' stands behind a blank", id="a blank for a comma"),
        pytest.param("synsched:move=no, ckpt=usr1", "hint 'ckpt=usr1' stands behind a blank", id="comma and blank"),
        pytest.param("synsched: Model=a", "hint 'Model=a' stands behind a blank: write commas", id="a blank in front"),
        pytest.param("synsched:duration=0", "hint duration='0'", id="no job takes no time"),
        pytest.param("synsched:model=" + "a" * 300, f"hint longer than {MAX_HINT_LENGTH} characters", id="too long"),
        pytest.param("synsched:model=r\N{EN DASH}50", "hint model='r?50'", id="what cannot be printed shows as ?"),
    ],
)
def test_says_what_is_wrong_in_one_line(comment: str, said: str) -> None:
    hints = parse_hints(comment)
    assert hints.given
    assert len(hints.problems) == 1
    assert hints.problems[0].startswith(said)
    assert hints.problems[0].isprintable()


def test_a_wrong_hint_does_not_take_the_right_ones_with_it() -> None:
    hints = parse_hints("synsched:model=bert,ckpt=never,move=yes")
    assert (hints.model, hints.checkpoint, hints.move) == ("bert", None, True)


@given(st.text())
def test_no_text_breaks_the_parser_and_problems_are_always_printable(text: str) -> None:
    for comment in (text, "synsched:" + text):
        hints = parse_hints(comment)
        assert all(problem.isprintable() and problem.isascii() for problem in hints.problems)
        assert hints.model is None or hints.model.isprintable()


names = st.from_regex(r"[a-z0-9][a-z0-9_.+-]{0,20}", fullmatch=True)
leads = st.none() | st.integers(0, 9999)


@given(
    st.builds(
        Hints,
        given=st.just(True),
        model=st.none() | names,
        task=st.none() | names,
        checkpoint=st.sampled_from(CheckpointSignal),
        lead=leads,
        duration=st.none() | st.integers(1, 9999999),
        move=st.none() | st.booleans(),
        pack=st.none() | st.booleans(),
        gpu_memory=st.none() | st.integers(1, 9_999_999),
        memory_tunable=st.booleans(),
        cpus_tunable=st.none() | st.booleans(),
        cpus_probed=st.booleans(),
        fork=st.none() | st.integers(1, 10**12 - 1),
        idle_last=st.booleans(),
        held_by_hook=st.booleans(),
    ).map(lambda hints: replace(hints, cpus_probed=hints.cpus_probed and hints.cpus_tunable is None))
)
def test_rendered_hints_read_back_the_same(hints: Hints) -> None:
    assert parse_hints("before " + render_hints(hints) + " after") == hints
