"""Where jobs come from: a digest of each script, and the folder, whatever owners call them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurmsched.backends.protocol import BackendError, JobOrigin
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import UnsafeCommandError
from slurmsched.backends.slurm.origins import read_origins

GONE = CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n")
DENIED = CommandResult(1, "", "job_script error: Access/permission denied\n")


class Slurm:
    """Answers for these jobs: number, number of the array, path of the script, folder, and the script; for each of
    which user and when it was submitted, if that is said."""

    def __init__(self, *jobs: tuple[str, str, str, str, bytes | None], by: Sequence[tuple[str, str]] = ()) -> None:
        self.jobs = jobs
        self.by = by or [(f"user{job[0]}", "2026-11-23T10:00:00") for job in jobs]
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], _stdin: str, _timeout: float, _env: object) -> CommandResult:
        self.asked.append(argv)
        if argv[0] == "squeue":
            rows = b"".join(
                b"".join(
                    text.encode()[:width].rjust(width)
                    for text, width in zip(row, (12, 12, 256, 20, 1100, 1100), strict=True)
                )
                + b"\n"
                for row in ((*job[:2], *by, *job[2:4]) for job, by in zip(self.jobs, self.by, strict=True))
            )
            return CommandResult(0, rows.decode(errors="replace"), "", rows) if rows else GONE
        scripts = {job[1] if job[1].isdecimal() else job[0]: job[4] for job in self.jobs}
        assert argv[:3] == ("scontrol", "write", "batch_script")
        script = scripts[argv[3]]
        return DENIED if script is None else CommandResult(0, "", "", script)

    @property
    def commands(self) -> Commands:
        return Commands(5.0, runner=self)


def test_equal_scripts_have_equal_digests_whatever_they_are_called() -> None:
    slurm = Slurm(("1", "N/A", "/a/x.sh", "/a", b"#!/bin/sh\n"), ("2", "N/A", "(null)", "/b", b"#!/bin/sh\n"))
    found = read_origins(slurm.commands, ["1", "2"])
    assert found["1"].script == found["2"].script != ""
    assert (found["1"].folder, found["2"].folder) == ("/a", "/b")


def test_the_tasks_of_an_array_have_one_script_which_is_read_once() -> None:
    slurm = Slurm(("7", "7", "/x", "/a", b"x"), ("8", "7", "/x", "/a", b"x"))
    found = read_origins(slurm.commands, ["7_1", "7_2", "7_3"])
    assert len(set(found.values())) == 1
    assert found.keys() == {"7_1", "7_2", "7_3"}
    assert len(slurm.asked) == 2


@pytest.mark.parametrize(
    ("second", "scripts"),
    [
        pytest.param(("alice", "2026-11-23T10:00:59", "/a/x.sh", "/a"), 1, id="from a loop in a shell"),
        pytest.param(("alice", "2026-11-23T10:01:00", "/a/x.sh", "/a"), 2, id="a minute later, perhaps changed"),
        pytest.param(("bob", "2026-11-23T10:00:00", "/a/x.sh", "/a"), 2, id="by another user"),
        pytest.param(("alice", "2026-11-23T10:00:00", "/a/y.sh", "/a"), 2, id="of another path"),
        pytest.param(("alice", "2026-11-23T10:00:00", "/a/x.sh", "/b"), 2, id="from another folder"),
        pytest.param(("alice", "2026-11-23T10:00:00", "(null)", "/a"), 2, id="whose text was given by itself"),
    ],
)
def test_a_script_is_read_once_for_jobs_that_were_submitted_together(
    second: tuple[str, str, str, str], scripts: int
) -> None:
    user, at, path, folder = second
    first = "(null)" if path == "(null)" else "/a/x.sh"
    slurm = Slurm(
        ("1", "N/A", first, "/a", b"x"),
        ("2", "N/A", path, folder, b"y"),
        by=[("alice", "2026-11-23T10:00:00"), (user, at)],
    )
    found = read_origins(slurm.commands, ["1", "2"])
    assert len(slurm.asked) == 1 + scripts
    assert len({origin.script for origin in found.values()}) == scripts
    assert found["2"].folder == folder


def test_a_script_that_may_not_be_read_goes_by_its_path() -> None:
    slurm = Slurm(
        ("1", "N/A", "/a/x.sh", "/a", None), ("2", "N/A", "/a/y.sh", "/a", None), ("3", "N/A", "", "/a", None)
    )
    found = read_origins(slurm.commands, ["1", "2", "3"])
    assert found["1"].script != found["2"].script
    assert found["3"] == JobOrigin("", "/a"), "nothing is known of it"


def test_paths_that_pose_as_other_jobs_are_paths() -> None:
    slurm = Slurm(("1", "N/A", "/a\n2           N/A         /root", "/a\n3 |", b"x"))
    alone = read_origins(slurm.commands, ["1"])["1"]
    assert read_origins(slurm.commands, ["1", "2", "3"]) == {"1": alone, "2": JobOrigin(), "3": JobOrigin()}


def test_more_scripts_than_are_read_at_once_are_left_to_a_later_call() -> None:
    jobs = [(str(job), "N/A", f"/a/{job // 2}.sh", "/a", b"%d" % (job // 2)) for job in range(1, 8)]
    slurm = Slurm(*jobs, by=[("alice", "2026-11-23T10:00:00")] * 7)
    asked = [job[0] for job in jobs]
    first = read_origins(slurm.commands, [*asked, "9"], scripts=2)
    assert first.keys() == {"1", "2", "3", "9"}, "the jobs of two scripts, and what is known not to be there"
    second = read_origins(slurm.commands, [job for job in asked if job not in first], scripts=2)
    assert second.keys() == {"4", "5", "6", "7"}
    assert len({origin.script for origin in (first | second).values()}) == 5


def test_the_origins_of_very_many_jobs_are_read_from_the_whole_queue() -> None:
    slurm = Slurm(
        *((str(job), "N/A", "/a/x.sh", "/a", b"x") for job in range(1, 1500)),
        by=[("alice", "2026-11-23T10:00:00")] * 1499,
    )
    found = read_origins(slurm.commands, [str(job) for job in range(1, 1400)])
    assert found.keys() == {str(job) for job in range(1, 1400)}
    assert [("-j" in argv, len(argv)) for argv in slurm.asked if argv[0] == "squeue"] == [(False, 7)]
    assert len(slurm.asked) == 2, "and their one script"


@pytest.mark.parametrize("jobs", [[], ["12+1"], ["5"]])
def test_nothing_is_known_of_parts_of_heterogeneous_jobs_and_of_jobs_that_are_gone(jobs: list[str]) -> None:
    assert read_origins(Slurm().commands, jobs) == dict.fromkeys(jobs, JobOrigin())


def test_a_slurm_that_fails_is_an_error() -> None:
    with pytest.raises(BackendError):
        read_origins(Commands(5.0, runner=lambda *_: CommandResult(1, "", "slurm_load_jobs error: x")), ["1"])


@pytest.mark.parametrize(
    "words", [("write", "batch_script", "1", "/etc/passwd"), ("write", "batch_script", "1; x", "-")]
)
def test_a_script_is_only_ever_written_to_standard_output(words: tuple[str, ...]) -> None:
    with pytest.raises(UnsafeCommandError):
        Slurm().commands.read("scontrol", *words)
