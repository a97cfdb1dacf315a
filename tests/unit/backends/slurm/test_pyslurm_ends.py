"""How the process that reads with pyslurm may end, and what polls do then."""

from __future__ import annotations

import re
import sys

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.errors import PyslurmUnavailableError
from tests.unit.backends.slurm.pyslurm_cluster import NOW, PyslurmCluster, fake_running, pyslurm_job, running
from tests.unit.fake_slurm import FakeJob

MINUTE = 60.0


@pytest.fixture
def busy(cluster: PyslurmCluster) -> PyslurmCluster:
    """The cluster with a job that waits and one that runs."""
    cluster.occupied()
    cluster.holds((pyslurm_job(1), FakeJob(1, user="root")), (running(2), fake_running(2)))
    return cluster


@pytest.mark.parametrize(
    ("end", "timeout", "said"),
    [
        pytest.param("SIGKILL", 60, "pyslurm was ended by SIGKILL", id="killed"),
        pytest.param("SIGSEGV", 60, "pyslurm was ended by SIGSEGV", id="crashed"),
        pytest.param("SIGRTMIN+1", 60, "pyslurm was ended by signal 35", id="a signal without a name"),
        pytest.param("hang", 1, "pyslurm did not answer in time", id="hanging"),
        pytest.param("leak", 60, "pyslurm ended with exit code 1: MemoryError", id="leaking"),
        pytest.param(
            "no library",
            60,
            "pyslurm ended with exit code 1: ImportError: libslurmfull.so: cannot open shared object file",
            id="a library that is missing",
        ),
        pytest.param(
            "nonsense", 60, "pyslurm's answer cannot be parsed (JSONDecodeError)", id="nonsense as its answer"
        ),
        pytest.param("error", 60, "pyslurm ended with exit code 1: TypeError: an object", id="an error of its own"),
        pytest.param(
            "exit 1 at import",
            60,
            "pyslurm ended with exit code 1: fatal: Could not establish a configuration source",
            id="fatal() where no configuration is found",
        ),
    ],
)
def test_the_poll_goes_by_commands_and_says_so(busy: PyslurmCluster, end: str, timeout: float, said: str) -> None:
    busy.shown["end"] = end
    backend = busy.backend(timeout=timeout, mebibytes=384)
    seen, plain = backend.observe(), busy.by_commands()
    (oddity,) = set(seen.oddities) - set(plain.oddities)
    assert oddity.startswith(said)
    assert oddity.endswith(": polls go by commands, and pyslurm is tried again after 1 min")
    assert (seen.nodes, seen.jobs, seen.set_aside) == (plain.nodes, plain.jobs, plain.set_aside)
    assert (seen.partitions, seen.reservations) == (plain.partitions, plain.reservations)
    assert (busy.started, backend.name) == (1, "slurm (pyslurm)")


def test_a_leak_ends_with_the_memory_that_it_may_have(busy: PyslurmCluster) -> None:
    busy.shown["end"] = "leak"
    (leaked,) = re.findall(r"MemoryError: (\d+) MiB were leaked", str(busy.backend(mebibytes=384).observe().oddities))
    assert 0 < int(leaked) < 384


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param("jobs", "id", id="a job without its number"),
        pytest.param("nodes", "name", id="a node without name"),
    ],
)
def test_records_that_cannot_be_named_are_no_answer(busy: PyslurmCluster, kind: str, key: str) -> None:
    busy.shown[kind][0][key] = {"raises": "ValueError"}
    seen = busy.backend().observe()
    assert seen.jobs == busy.by_commands().jobs
    assert any(oddity.startswith("pyslurm's answer cannot be parsed (ValueError)") for oddity in seen.oddities)


def test_an_interpreter_that_is_gone_is_no_end_of_polls(busy: PyslurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    seen = busy.backend().observe()
    assert seen.jobs == busy.by_commands().jobs
    assert any(oddity.startswith("pyslurm's interpreter cannot be started") for oddity in seen.oddities)


def starts(cluster: PyslurmCluster, backend: SlurmBackend, *moments: float) -> list[bool]:
    """Whether pyslurm was started at each of these moments, in seconds from now."""
    found = []
    for moment in moments:
        before, cluster.now = cluster.started, NOW + moment
        backend.observe()
        found.append(cluster.started > before)
    return found


class TestPauses:
    """When pyslurm is tried again after it ended."""

    def test_not_within_a_minute(self, busy: PyslurmCluster) -> None:
        busy.shown["end"] = "SIGKILL"
        assert starts(busy, busy.backend(), 0, 1, 59.9, 60, 61) == [True, False, False, True, False]

    def test_polls_in_a_pause_say_why(self, busy: PyslurmCluster) -> None:
        busy.shown["end"] = "SIGKILL"
        backend = busy.backend()
        first = backend.observe()
        busy.now += 30
        assert backend.observe().oddities == first.oddities

    def test_they_double_up_to_an_hour(self, busy: PyslurmCluster) -> None:
        busy.shown["end"] = "SIGKILL"
        backend = busy.backend()
        moment = 0.0
        for pause in (1, 2, 4, 8, 16, 32, 60, 60):
            assert starts(busy, backend, moment, moment + pause * MINUTE - 1) == [True, False]
            busy.now = NOW + moment + pause * MINUTE - 1
            assert any(f"is tried again after {pause} min" in oddity for oddity in backend.observe().oddities)
            moment += pause * MINUTE

    def test_after_a_success_they_start_at_one_minute_again(self, busy: PyslurmCluster) -> None:
        backend = busy.backend()
        busy.shown["end"] = "SIGKILL"
        assert starts(busy, backend, 0, 60, 179) == [True, True, False]
        busy.shown["end"] = ""
        assert starts(busy, backend, 180, 181) == [True, True]
        busy.shown["end"] = "SIGKILL"
        assert starts(busy, backend, 182, 241, 242) == [True, False, True]

    def test_a_clock_that_goes_backwards_does_not_lock_it_out(self, busy: PyslurmCluster) -> None:
        busy.shown["end"] = "SIGKILL"
        backend = busy.backend()
        assert starts(busy, backend, 0, -10_000, -9_990) == [True, True, False]

    def test_what_was_asked_is_still_known_afterwards(self, busy: PyslurmCluster) -> None:
        backend = busy.backend()
        known = backend.observe().jobs_by_id["1"]
        busy.shown["end"] = "SIGKILL"
        assert starts(busy, backend, 1) == [True]
        busy.shown["end"] = ""
        busy.now = NOW + 100
        busy.slurm.asked.clear()
        assert backend.observe().jobs_by_id["1"] == known
        assert "squeue" not in busy.slurm.asked


def test_noise_on_stdout_does_no_harm(busy: PyslurmCluster) -> None:
    quiet = busy.backend().observe()
    busy.shown["end"] = "noise"
    backend = busy.backend()
    assert backend.observe() == quiet
    assert len(backend.remarks) == 1, "nothing was read by commands"


@pytest.mark.parametrize("end", ["silent", "hang"])
def test_a_silent_slurmctld_is_told_by_commands_and_no_reason_for_a_pause(busy: PyslurmCluster, end: str) -> None:
    busy.shown["end"] = end
    backend = busy.backend(timeout=1)
    busy.slurm.down = True
    with pytest.raises(UnreachableError, match="slurmctld does not answer: see 'scontrol ping'"):
        backend.observe()
    busy.slurm.down, busy.shown["end"] = False, ""
    seen = backend.observe()
    assert (backend.name, [job.id for job in seen.jobs], seen.oddities) == ("slurm (pyslurm)", ["1", "2"], ())


def test_a_pyslurm_that_slurmctld_does_not_answer_is_left_alone_where_commands_are_answered(
    busy: PyslurmCluster,
) -> None:
    busy.shown["end"] = "silent"
    seen = busy.backend().observe()
    assert seen.jobs == busy.by_commands().jobs
    (oddity,) = seen.oddities
    assert oddity.startswith("pyslurm has no answer from slurmctld (Unable to")


NOT_FITTING = [
    pytest.param({"version": "25.05.1"}, "pyslurm 25.05.1 does not fit Slurm 25.11", id="an earlier series"),
    pytest.param({"version": "26.5.0"}, "pyslurm 26.5.0 does not fit Slurm 25.11", id="a later series"),
]


@pytest.mark.parametrize(("shown", "said"), NOT_FITTING)
def test_where_it_does_not_fit_auto_goes_by_commands_and_tries_again_after_an_hour(
    busy: PyslurmCluster, shown: dict[str, str], said: str
) -> None:
    busy.shown |= shown
    backend = busy.backend()
    seen = backend.observe()
    assert seen == busy.by_commands(), "it is nothing odd about the cluster"
    (remark,) = backend.remarks
    assert remark == f"polls go by commands: {said}: both must be of one X.Y series"
    assert backend.name == "slurm (commands)"
    assert starts(busy, backend, 3599, 3600, 3601) == [False, True, False]
    busy.shown["version"] = "25.11.2"
    assert starts(busy, backend, 7200) == [True]
    assert backend.name == "slurm (pyslurm)"


def test_one_that_is_gone_after_it_was_used_is_told_to_everybody(busy: PyslurmCluster) -> None:
    """As while it is being upgraded."""
    backend = busy.backend()
    backend.observe()
    busy.shown["version"] = "26.5.0"
    (oddity,) = backend.observe().oddities
    assert oddity.startswith("pyslurm 26.5.0 does not fit Slurm 25.11")
    assert oddity.endswith("polls go by commands, and pyslurm is tried again after 60 min")


@pytest.mark.parametrize(("shown", "said"), NOT_FITTING)
def test_where_it_does_not_fit_and_is_demanded_that_is_an_error(
    busy: PyslurmCluster, shown: dict[str, str], said: str
) -> None:
    busy.shown |= shown
    with pytest.raises(PyslurmUnavailableError, match=said):
        busy.backend(demanded=True).observe()


@pytest.mark.parametrize(
    ("served", "version"),
    [
        pytest.param("25.11.7", "25.11.0", id="another patch level"),
        pytest.param("25.05.3", "25.5.0", id="a month that PyPI writes without its 0"),
    ],
)
def test_one_of_slurmctlds_series_fits(busy: PyslurmCluster, served: str, version: str) -> None:
    busy.slurm.release, busy.shown["version"] = served, version
    backend = busy.backend(demanded=True)
    assert len(backend.observe().jobs) == 2
    assert backend.remarks[0].startswith(f"pyslurm {version} reads nodes, reservations and jobs (")
