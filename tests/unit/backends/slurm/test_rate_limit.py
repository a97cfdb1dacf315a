"""A slurmctld that limits how many requests a user may send: `SlurmctldParameters=rl_enable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import RateLimitedError, error_from_stderr
from slurmsched.backends.slurm.rate_limit import RateLimit, parse_rate_limit
from slurmsched.model import Hold, Operation, Reason, ReasonCode, Verb
from tests.unit import fake_slurm
from tests.unit.fake_slurm import FakeJob, FakeSlurm

LIMITED = "SlurmctldParameters     = enable_configless,rl_enable,rl_refill_rate=4\n"
EXCEEDED = "Rate limit exceeded, please retry momentarily"
"""What slurm_strerror(3) says of SLURMCTLD_COMMUNICATIONS_BACKOFF, 23.02 to 25.11."""
WHY = Reason(ReasonCode.START)


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [
        pytest.param("", None, id="nothing is set"),
        pytest.param("enable_configless,cloud_dns", None, id="other words"),
        pytest.param("rl_bucket_size=50", None, id="a bucket, and no limit in force"),
        pytest.param("rl_enable", RateLimit(30, 2.0), id="Slurm's defaults"),
        pytest.param("a, RL_ENABLE ,rl_bucket_size=50", RateLimit(50, 2.0), id="a larger bucket"),
        pytest.param("rl_enable,rl_refill_rate=10,rl_refill_period=5", RateLimit(30, 2.0), id="ten every five seconds"),
        pytest.param("rl_enable,rl_refill_rate=0,rl_bucket_size=x", RateLimit(30, 2.0), id="no numbers"),
    ],
)
def test_the_limit_that_slurm_conf_sets(parameters: str, limit: RateLimit | None) -> None:
    assert parse_rate_limit(parameters) == limit


def test_a_limit_in_words() -> None:
    assert RateLimit(30, 0.5).text == "0.5 requests a second after 30 at once"


@pytest.mark.parametrize(
    "stderr",
    [
        pytest.param(f"slurm_update error: {EXCEEDED}\n", id="an update"),
        pytest.param(f"{EXCEEDED} for job 12\n", id="a release"),
        pytest.param(f"slurm_load_jobs error: {EXCEEDED}\n", id="a read"),
    ],
)
def test_an_answer_that_it_was_too_much_means_back_off(stderr: str) -> None:
    error = error_from_stderr("scontrol", stderr)
    assert isinstance(error, RateLimitedError)
    assert isinstance(error, UnreachableError), "the next round comes later, and finds out what was done"
    assert "rl_enable" in str(error)


class Timed:
    """A Slurm that notes how long each batch of changes may take."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm, self.timeouts = slurm, list[float]()

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        if list(argv) == ["scontrol"]:
            self.timeouts.append(timeout)
        return self.slurm(argv, given, timeout, env)


def released_by(user: str, configuration: str, monkeypatch: pytest.MonkeyPatch) -> tuple[SlurmBackend, float]:
    """The backend after ten releases as this user, and the seconds that they might take."""
    monkeypatch.setattr(fake_slurm, "CONFIG", fake_slurm.CONFIG + configuration)
    timed = Timed(FakeSlurm([FakeJob(number, priority=0, reason="JobHeldAdmin") for number in range(1, 11)]))
    backend = SlurmBackend(Commands(5, runner=timed), CommandSource(), lambda: 0.0, user=lambda: user)
    backend.observe()
    releases = [Operation(Verb.RELEASE, str(number), WHY, Hold.ADMIN.value, Hold.NONE.value) for number in range(1, 11)]
    assert {outcome.result.value for outcome in backend.execute(releases)} == {"done"}
    return backend, timed.timeouts[-1]


def test_scontrol_is_given_the_time_for_which_the_limit_makes_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, timeout = released_by("synsched", LIMITED, monkeypatch)
    assert timeout == 5 + 2 * 10 / 4, "ten requests at four a second, and it sleeps for whole seconds"
    assert backend.operation_seconds == 0.5


@pytest.mark.parametrize(
    ("user", "configuration"),
    [
        pytest.param("slurm", LIMITED, id="SlurmUser is exempt"),
        pytest.param("root", LIMITED, id="and so is root"),
        pytest.param("synsched", "", id="no limit"),
    ],
)
def test_nobody_waits_where_no_limit_applies(user: str, configuration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, timeout = released_by(user, configuration, monkeypatch)
    assert (backend.operation_seconds, timeout) == (0.0, 5 + 0.25 * 10)


def test_an_update_of_nodes_counts_for_the_requests_that_scontrol_makes_of_it() -> None:
    lines = ["update JobId=1 ReqNodeList=n1 NumNodes=1-1", "release 1"]
    assert RateLimit(30, 2.0).seconds_for(lines) == 2 * 4 / 2
