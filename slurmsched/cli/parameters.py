"""Parsers of option values in Slurm's notation, for click's `type=`, what a shell completes of them, for its
`shell_complete=`, and options that override the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import fields, replace
from io import StringIO
from pwd import getpwuid
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from slurmsched.cli.invocation import Invocation
from slurmsched.model import JobId
from slurmsched.model.hints import parse_duration
from slurmsched.settings.definition import Mode, PolicySettings, Settings

MAX_ARRAY_TASKS: Final = 10_000
"""Most tasks that one bracket may expand to."""
MAX_SEEDS: Final = 1000
"""Most seeds of one range."""

_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_BRACKET = re.compile(r"([0-9]{1,10})_\[([0-9,-]{1,1000})\]\Z")
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)B?\Z", re.IGNORECASE)
_GPUS = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]{0,63})(?::([1-9][0-9]{0,2}))?|([1-9][0-9]{0,2}))\Z")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?\Z")
_SEEDS = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?\Z")
_MEBIBYTES_PER_UNIT: Final = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def split_names(value: str) -> tuple[str, ...]:
    """Splits `alice,bob`. An empty text has no names."""
    return tuple(name for name in value.split(",") if name)


def parse_job_ids(value: str) -> tuple[JobId, ...]:
    """Parses `12`, `12_3`, `1,2` or `12_[0-3,7]`. Raises click.BadParameter."""
    try:
        return tuple(job for part in _COMMA_OUTSIDE.split(value) for job in _expand_array(part))
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a job id: write 12, 12_3, 1,2 or 12_[0-3]") from None


def user_name() -> str:
    """Returns the name of the user who calls, as the kernel has it; the number of one without a name."""
    try:
        return getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def parse_mebibytes(value: str) -> int:
    """Returns a size in sbatch's notation, such as `4G` or `512M`, in MiB. Raises click.BadParameter."""
    match = _SIZE.match(value)
    if match is None:
        raise click.BadParameter(f"'{value}' is not a size: write 4G or 512M")
    return int(int(match[1]) * _MEBIBYTES_PER_UNIT[match[2].upper()])


def parse_mebibyte_list(value: str) -> tuple[float, ...]:
    """Returns sizes such as `16G,32G` in MiB, ascending; none for an empty text. Raises click.BadParameter."""
    return tuple(sorted({float(parse_mebibytes(part)) for part in split_names(value)}))


def parse_seconds(value: str) -> int:
    """Returns `90`, `90s`, `5m` or `2h` in seconds. Raises click.BadParameter."""
    seconds = parse_duration(value)
    if seconds is None:
        raise click.BadParameter(f"'{value}' is not a time: write 90s, 5m or 2h")
    return seconds


def parse_seeds(value: str) -> range:
    """Parses `42` or `42..44`. Raises click.BadParameter."""
    match = _SEEDS.match(value)
    last = int(match[2] or match[1]) if match else -1
    if match is None or not 0 <= last - int(match[1]) < MAX_SEEDS:
        raise click.BadParameter(f"'{value}' is not a seed: write 42 or 42..44")
    return range(int(match[1]), last + 1)


def parse_gpus(value: str) -> tuple[str, int]:
    """Parses `v100`, `v100:4` or `4` to a type, empty for any, and a number, else 1. Raises click.BadParameter."""
    match = _GPUS.match(value)
    if match is None:
        raise click.BadParameter(f"'{value}' is not a GPU request: write v100, v100:4 or 4")
    kind, number, alone = match.groups()
    return kind or "", int(number or alone or 1)


def parse_cpu_points(value: str) -> tuple[float, ...]:
    """Parses numbers of CPUs, `1-12` or `1,2,4,8`, and returns them ascending. Raises click.BadParameter."""
    points: set[int] = set()
    for part in value.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise click.BadParameter(f"'{value}' is not a list of CPU counts: write 1-12 or 1,2,4,8")
        points |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not points or not min(points):
        raise click.BadParameter(f"'{value}' is not a list of CPU counts: write 1-12 or 1,2,4,8")
    return tuple(float(point) for point in sorted(points))


def _expand_array(part: str) -> Iterator[JobId]:
    bracket = _BRACKET.match(part)
    if bracket is None:
        if not _ID.match(part):
            raise ValueError(part)
        yield part
        return
    for span in bracket[2].split(","):
        first, dash, last = span.partition("-")
        tasks = range(int(first), int(last if dash else first) + 1)
        if not 0 < len(tasks) <= MAX_ARRAY_TASKS:
            raise ValueError(part)
        yield from (f"{bracket[1]}_{task}" for task in tasks)


MODE_CHOICE: Final = click.Choice([mode.value for mode in Mode])

MAX_COMPLETED: Final = 1000
"""Most values that a shell is offered."""

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
OfferedValues = Callable[[Invocation], Iterable[tuple[str, str]]]
"""Finds the values of a parameter, each with what it means."""


def completion(offered: OfferedValues, *, of_list: bool = False) -> Completion:
    """Returns what a shell completes of a parameter: the values that begin as typed, of a list its last entry.

    Whatever goes wrong, a TAB prints nothing, and offers nothing then.
    """

    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        before, comma, begun = typed.rpartition(",") if of_list else ("", "", typed)
        found: list[CompletionItem] = []
        with suppress(Exception), redirect_stderr(StringIO()):
            invocation = context.find_object(Invocation) or Invocation(context.find_root().params.get("config"))
            for value, meaning in offered(invocation):
                if value.startswith(begun) and f"{value}{meaning}".isprintable() and len(found) < MAX_COMPLETED:
                    found.append(CompletionItem(f"{before}{comma}{value}", help=meaning))
        return found

    return complete


def complete_files(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Lets the shell complete the name of a file."""
    return [CompletionItem(typed, type="file")]


def _offered_jobs(invocation: Invocation) -> Iterator[tuple[str, str]]:
    """Yields the managed jobs as of the last round, from our own files; the caller's alone if there are any."""
    with invocation.open_readable() as store:
        jobs = store.jobs()
    caller = user_name()
    for job in [job for job in jobs if job.owner == caller] or jobs:
        yield job.id, f"{job.owner} {job.state.value}"


def _offered_users(invocation: Invocation) -> Iterator[tuple[str, str]]:
    with invocation.open_readable() as store:
        yield from ((user, "") for user in sorted({job.owner for job in store.jobs()}))


def _offered_partitions(invocation: Invocation) -> Iterator[tuple[str, str]]:
    nodes = invocation.status().nodes
    yield from ((name, "") for name in sorted({name for node in nodes for name in node.partitions}))


def _offered_gpu_types(invocation: Invocation) -> Iterator[tuple[str, str]]:
    nodes = invocation.status().nodes
    yield from ((kind, "") for kind in sorted({gpu.type for node in nodes for gpu in node.gpus}) if kind)


def _offered_policies(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    from slurmsched.policies.policies import POLICIES  # noqa: PLC0415 (numpy: slow for commands that only read)

    yield from ((name, row.summary) for name, row in POLICIES.items())


def _offered_orders(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    choices = next(item.metadata["choices"] for item in fields(PolicySettings) if item.name == "order")
    yield from ((order, "") for order in choices)


def _offered_formats(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    from slurmsched.traces.formats.registry import TRACE_FORMATS  # noqa: PLC0415 (only commands on traces need it)

    return ((name, "") for name in TRACE_FORMATS)


complete_jobs: Final = completion(_offered_jobs, of_list=True)
complete_users: Final = completion(_offered_users, of_list=True)
complete_partitions: Final = completion(_offered_partitions, of_list=True)
complete_gpu_types: Final = completion(_offered_gpu_types)
complete_policies: Final = completion(_offered_policies, of_list=True)
complete_orders: Final = completion(_offered_orders)
complete_formats: Final = completion(_offered_formats)

F = TypeVar("F", bound=Callable[..., Any])


def policy_options(command: F) -> F:
    """Adds `--system` and `--order` to a command."""
    for option in (
        click.option(
            "--order",
            metavar="NAME",
            shell_complete=complete_orders,
            help="Use this job order instead of policy.order.",
        ),
        click.option(
            "--system",
            metavar="NAME",
            shell_complete=complete_policies,
            help="Use this policy instead of policy.system.",
        ),
    ):
        command = option(command)
    return command


def with_defragmentation(settings: Settings, *, requested: bool) -> Settings:
    """Returns the settings for a round that defragments, if requested. Raises click.UsageError under a policy that
    does not."""
    if not requested:
        return settings
    _check_read(settings, "policy.defragment")
    return replace(settings, policy=replace(settings.policy, defragment=True))


def with_mode(settings: Settings, mode: str | None) -> Settings:
    """Returns the settings with `mode`, if it is given."""
    return settings if mode is None else replace(settings, rounds=replace(settings.rounds, mode=Mode(mode)))


def with_policy(settings: Settings, system: str | None, order: str | None) -> Settings:
    """Returns the settings with `system` and `order`, as far as they are given. Raises click.UsageError for an order
    that the policy does not read."""
    policy = settings.policy
    chosen = replace(settings, policy=replace(policy, system=system or policy.system, order=order or policy.order))
    if order is not None:
        _check_read(chosen, "policy.order")
    return chosen


def _check_read(settings: Settings, name: str) -> None:
    from slurmsched.policies.policies import settings_problems  # noqa: PLC0415 (numpy: slow for commands that only read)

    for problem in settings_problems(settings.policy.system, settings.policy.order, {name}):
        raise click.UsageError(problem)
