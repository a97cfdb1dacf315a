"""sbatch as it is run for people, and rehearsed for the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import Answer
from slurmsched.backends.slurm.errors import UnsafeError
from slurmsched.backends.slurm.submitting import rehearse, run


def test_nothing_but_sbatch_is_run() -> None:
    with pytest.raises(UnsafeError):
        run(("rm", "-rf", "/"))


def test_a_rehearsal_queues_nothing_and_keeps_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    seen: dict[str, object] = {}

    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        seen.update(argv=list(argv), given=given, timeout=timeout, zone=env["TZ"], conf=env["SLURM_CONF"])
        return Answer(0, "", "sbatch: synsched: unknown hint\n")

    assert rehearse("synsched:x=1", "/etc/s.conf", 5.0, process) == "sbatch: synsched: unknown hint\n"
    assert seen == {
        "argv": ["sbatch", "--test-only", "--ntasks=1", "--wrap=true", "--comment=synsched:x=1"],
        "given": "",
        "timeout": 5.0,
        "zone": "Europe/Berlin",
        "conf": "/etc/s.conf",
    }


@pytest.mark.parametrize("error", [FileNotFoundError(), TimeoutError()])
def test_no_answer_is_told_in_one_line(error: OSError) -> None:
    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        raise error

    with pytest.raises(BackendError, match="sbatch"):
        rehearse("x", process=process)
