"""The hook and the scheduler read hints alike."""

from __future__ import annotations

import random
import subprocess

import pytest

from slurmsched.model import NO_HINTS, Hints, parse_hints
from tests.unit.hooks.controller import HARNESS, HOOK, Slurmctld

KEYS = [
    "model",
    "task",
    "ckpt",
    "duration",
    "move",
    "pack",
    "gpumem",
    "cpus",
    "mem",
    "fork",
    "idle",
    "held",
    "left",
    "modell",
    "MODEL",
    "Ckpt",
    "DURATION",
    "HELD",
    "mo\u017fel",
    "",
    "=",
    "a" * 30,
    "schlüssel",
]
VALUES = [
    *[
        "resnet50",
        "a" * 64,
        "a" * 65,
        "-x",
        "_",
        "a.b_c+d-e",
        "Resnet",
        "%s%d%n",
        "$(reboot)",
        "`id`",
        "a;b",
        "\\",
        '"',
    ],
    *["usr1", "usr1@60", "usr1@", "usr1@5m", "usr1@99999999", "@60", "usr3", "none", "none@0", "term@2h@3h", "INT"],
    *[
        "90",
        "90s",
        "5m",
        "2h",
        "1d",
        "0",
        "0s",
        "00005",
        "1.5h",
        "-5",
        "5 m",
        "12345678",
        "1e3",
        "٣",
        "yes",
        "no",
        "Yes",
    ],
    *["2:00:00", "1-12", "1-12:30:05", "1-", "-1", "2:0", "2:000", "2::", "2:", ":2", "1:2:3:4", "1-2-3", "12345678:1"],
    *[
        "123456-1",
        "99999-9999999:99:99",
        "USR1@60",
        "SIGUSR1",
        "sigsigint",
        "ResNet50",
        "TUNE",
        "\u212a",
        "\u017f",
        "Last",
    ],
    *["1", "50000", "050000", "999999999999", "1000000000000", "5e4", "50_000"],
    *["12g", "9000m", "9999999g", "10000000m", "012g", "0g", "12", "12G", "12gb", "g"],
    *["tune", "keep", "last", "hook", "hooked", "", "=", "a=b", "é", "日本語" * 9, "\x00", "\x7f", "\u200b", "\udfff"],
]
RIGHT = [
    "model=gpt-2",
    "task=image",
    "ckpt=usr1@60",
    "ckpt=term",
    "duration=2h",
    "move=no",
    "pack=yes",
    "gpumem=12g",
    "mem=tune",
    "cpus=keep",
    "cpus=tune",
    "cpus=probe",
    "fork=50000",
    "idle=last",
    "held=hook",
    "left=spread-job",
]
BLANKS = [
    " ",
    "\t",
    "\n",
    "\x0b",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u202f",
    "\u205f",
    "\u3000",
]
WORDS = ["synsched:", "synsched", "Synsched:", "xsynsched:", "my", "own", "words", "synsched:,", "\u2011", "\u180e"]
WORDS += ["ckpt=usr1", ",MODEL=x", "held=hook", "lr=0.1", "\u017fynsched:", "SYNSCHED:"]
SEPARATORS = [",", ",,", ";", "", "="]


def item(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(RIGHT)
    separator = "=" if chance.random() < 0.9 else chance.choice(["", "==", ":"])
    return chance.choice(KEYS) + separator + chance.choice(VALUES)


def comment(chance: random.Random) -> str:
    """A comment as somebody might write it who means no good."""
    items = [item(chance) for _ in range(chance.choice([0, 1, 1, 2, 3, 5, 40]))]
    hint = chance.choice(WORDS[:4] + ["synsched:"] * 6) + chance.choice(SEPARATORS[:2] + [","] * 5).join(items)
    around = [chance.choice(WORDS) for _ in range(chance.choice([0, 0, 1, 3]))]
    words = [*around, hint] if chance.random() < 0.5 else [hint, *around]
    text = chance.choice(BLANKS).join(words)
    if chance.random() < 0.2:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(BLANKS + SEPARATORS + [chr(chance.randrange(0x110000))]) + text[at:]
    return text.replace("\x00", "").encode(errors="replace").decode()  # no C string holds a NUL


def as_fields(hints: Hints) -> dict[str, str]:
    """Hints as the Lua side prints them: what was not said is left out."""
    move, pack = (None if said is None else ("yes" if said else "no") for said in (hints.move, hints.pack))
    fields = {
        "model": hints.model,
        "task": hints.task,
        "checkpoint": hints.checkpoint,
        "lead": hints.lead,
        "duration": hints.duration,
        "move": move,
        "pack": pack,
        "gpu_memory": hints.gpu_memory,
        "cpus_tunable": None if hints.cpus_tunable is None else str(hints.cpus_tunable).lower(),
        "fork": hints.fork,
        "left": hints.left,
    }
    said = {name: str(value) for name, value in fields.items() if value is not None}
    flags = {
        "memory_tunable": hints.memory_tunable, "held_by_hook": hints.held_by_hook, "marks_only": hints.marks_only,
        "idle_last": hints.idle_last, "cpus_probed": hints.cpus_probed,
    }  # fmt: skip
    said |= {name: "true" for name, value in flags.items() if value}
    return said | {"given": str(hints.given).lower(), "problems": "\n".join(hints.problems)}


def test_lua_and_python_read_ten_thousand_hostile_comments_alike(lua_command: str) -> None:
    chance = random.Random(2305)
    comments = [comment(chance) for _ in range(10_000)]
    argv = [lua_command, str(HARNESS), str(HOOK), "/nonexistent"]
    asked = "".join(f"hints {text.encode().hex()}\n" for text in comments)
    run = subprocess.run(argv, input=asked, capture_output=True, text=True, check=True)
    answers = run.stdout.splitlines()
    assert len(answers) == len(comments)
    for text, answer in zip(comments, answers, strict=True):
        pairs = (word.partition("=") for word in answer.split())
        said = {name: bytes.fromhex(value).decode() for name, _, value in pairs}
        if said.get("memory_tunable") == "false":
            del said["memory_tunable"]
        assert said == as_fields(parse_hints(text)), repr(text)


def test_the_generated_comments_are_worth_comparing() -> None:
    chance = random.Random(2305)
    read = [parse_hints(comment(chance)) for _ in range(10_000)]
    assert sum(1 for hints in read if hints.given) > 7000
    assert sum(1 for hints in read if hints.problems) > 4000
    for name in (
        "model", "task", "checkpoint", "lead", "duration", "move", "pack", "gpu_memory", "memory_tunable",
        "cpus_tunable", "cpus_probed", "fork", "idle_last", "held_by_hook",
    ):  # fmt: skip
        assert sum(1 for hints in read if getattr(hints, name) != getattr(NO_HINTS, name)) > 50, name


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("synsched:", id="a bare prefix"),
        pytest.param("synsched:" + "a" * 247, id="as long as may be"),
        pytest.param("synsched:" + "a" * 248, id="one too long"),
        pytest.param("synsched:" + "é" * 247, id="as long as may be, in characters"),
        pytest.param("synsched:" + "é" * 248, id="one character too long"),
    ],
)
def test_they_agree_at_the_edges(slurmctld: Slurmctld, text: str) -> None:
    assert slurmctld.hints(text) == as_fields(parse_hints(text))
