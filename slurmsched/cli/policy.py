"""Another mode, system or order than the settings name, for one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click

from slurmsched.settings.definition import Mode, Settings

__all__ = ["MODE", "defragmenting", "policy_options", "with_mode", "with_policy"]

MODE: Final = click.Choice([mode.value for mode in Mode])

_DEFRAGMENTS: Final = "fgd"

F = TypeVar("F", bound=Callable[..., Any])


def policy_options(command: F) -> F:
    """`--system` and `--order` for a command."""
    for option in (
        click.option("--order", metavar="NAME", help="Decide in another order than the settings name."),
        click.option("--system", metavar="NAME", help="Decide with another system than the settings name."),
    ):
        command = option(command)
    return command


def defragmenting(settings: Settings, *, asked: bool, system: str | None = None) -> Settings:
    """The settings with running jobs moved for waiting ones, where that was asked for. Only system fgd does that, so
    it decides such a round, whatever the settings name. Raises UsageError where another was asked for beside it."""
    if not asked:
        return settings
    if system not in (None, _DEFRAGMENTS):
        raise click.UsageError(f"--defrag is a round of system {_DEFRAGMENTS}: leave out --system {system}")
    return replace(settings, policy=replace(settings.policy, system=_DEFRAGMENTS, defragment=True))


def with_mode(settings: Settings, mode: str | None) -> Settings:
    """The settings with the mode that was named, where one was."""
    return settings if mode is None else replace(settings, rounds=replace(settings.rounds, mode=Mode(mode)))


def with_policy(settings: Settings, system: str | None, order: str | None) -> Settings:
    """The settings with the system and order that were named, where they were."""
    policy = settings.policy
    return replace(settings, policy=replace(policy, system=system or policy.system, order=order or policy.order))
