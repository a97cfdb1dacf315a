"""Slurm's own settings, as far as rounds depend on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.settings.definition import Mode, Settings

__all__ = ["Configuration", "about_configuration", "parsed"]

Configuration = Mapping[str, str]
"""What `scontrol show config` prints: `SelectType` -> `select/cons_tres`."""

_TOPIC: Final = "slurm.conf"
_AS_OF: Final = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def parsed(text: str) -> tuple[Configuration, float | None]:
    """The settings in the text of `scontrol show config` under TZ=UTC, and slurmctld's time in its first line."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    match = _AS_OF.search(text)
    as_of = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() if match else None
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}, as_of


def about_configuration(configuration: Configuration, settings: Settings) -> tuple[Finding, ...]:
    """What each setting that matters is, in the order of _CHECKS."""
    found = tuple(finding for check in _CHECKS for finding in check(configuration, settings))
    return found or (fine(_TOPIC, "has what rounds need"),)


def _select(configuration: Configuration, _: Settings) -> Iterator[Finding]:
    kind = configuration.get("SelectType", "")
    if kind != "select/cons_tres":
        yield mend(_TOPIC, f"SelectType is {kind or 'not set'}: GPUs cannot be allocated", "set select/cons_tres")
    if "MEMORY" not in configuration.get("SelectTypeParameters", "").upper():
        yield hint(_TOPIC, "memory is not scheduled: a round cannot size it", "set SelectTypeParameters=CR_Core_Memory")


def _gres(configuration: Configuration, _: Settings) -> Iterator[Finding]:
    if "gpu" not in configuration.get("GresTypes", "").split(","):
        yield mend(_TOPIC, "GresTypes has no gpu", "set GresTypes=gpu and describe the GPUs in gres.conf")


def _hook(configuration: Configuration, settings: Settings) -> Iterator[Finding]:
    if "lua" in configuration.get("JobSubmitPlugins", "").split(","):
        return
    told = "hooks/job_submit.lua is not in force: nobody tells people of wrong hints"
    remedy = "set JobSubmitPlugins=lua and install hooks/job_submit.lua beside slurm.conf"
    if settings.rounds.mode is Mode.ENFORCE:
        yield mend(
            _TOPIC, "hooks/job_submit.lua is not in force: Slurm may start jobs before a round sees them", remedy
        )
    else:
        yield hint(_TOPIC, told, remedy)


def _requeue(configuration: Configuration, _: Settings) -> Iterator[Finding]:
    if configuration.get("JobRequeue", "1") == "0":
        yield hint(
            _TOPIC,
            "JobRequeue is 0: only jobs submitted with --requeue are ever moved",
            "set JobRequeue=1 if jobs may be",
        )


def _limits(configuration: Configuration, _: Settings) -> Iterator[Finding]:
    if "rl_enable" in configuration.get("SlurmctldParameters", ""):
        yield hint(_TOPIC, "rl_enable limits how fast our updates are taken", "leave rounds.period at 5m or longer")


_CHECKS: Final[tuple[Callable[[Configuration, Settings], Iterator[Finding]], ...]] = (
    _select,
    _gres,
    _hook,
    _requeue,
    _limits,
)
