"""`synsched config` and `synsched render`: the settings, and the files that follow from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import click

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.sbatch_options import options_by_group
from slurmsched.cli.cluster import cluster_size, connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.json_schema import described_json
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import completion
from slurmsched.daemon.metric_definitions import metrics_by_group
from slurmsched.doctor.installation import settings_mistakes
from slurmsched.doctor.slurm import SlurmNames, read_names, unknown_names
from slurmsched.installation import DEFAULT_CLUSTER_SIZE, template_values
from slurmsched.policies.policies import comparison_remark
from slurmsched.report.tables import Column, Listing
from slurmsched.settings.file import SettingRow, SettingsError, read_settings_file, setting_rows, settings_file
from slurmsched.template_files import render as rendered
from slurmsched.template_files import template_names, template_values_read


@click.group()
def config() -> None:
    """Show and check the settings.

    \b
    Example:
      synsched config init > /etc/synsched/synsched.toml
      synsched config check
      synsched config show
    """


@dataclass(frozen=True, slots=True)
class SettingsInForce:
    """Every setting, its value and where that comes from; `file` is empty without a file."""

    file: str
    settings: tuple[SettingRow, ...]


@config.command()
@json_option("cli.config:SettingsInForce")
@click.pass_obj
def show(invocation: Invocation, *, as_json: bool) -> None:
    """Show every setting in force and where it comes from.

    \b
    Example:
      synsched config show
    """
    found = setting_rows(invocation.loaded)
    if as_json:
        print_json(SettingsInForce(str(invocation.loaded.file or ""), found))
        return
    columns = (Column("SETTING"), Column("FROM"), Column("VALUE"))
    console().print(Listing(columns, [(row.name, row.origin, row.value) for row in found]))


@dataclass(frozen=True, slots=True)
class CheckedSettings:
    """Mistakes and remarks as sentences; `file` is empty without a file."""

    file: str
    mistakes: tuple[str, ...]
    remarks: tuple[str, ...]


@config.command()
@json_option("cli.config:CheckedSettings")
@click.pass_obj
def check(invocation: Invocation, *, as_json: bool) -> None:
    """Find the mistakes in the settings file; exit 2 if there are any.

    Mistakes are also a policy that does not exist, a setting that the chosen policy does not read, a guard that
    contradicts it, two settings that name one file, profiles that cannot be read, partitions that leave nothing to
    manage; and partitions, QOS, users and accounts that Slurm does not have, if it answers.

    \b
    Example:
      synsched --config new.toml config check
    """
    loaded = read_settings_file(invocation.config or settings_file(os.environ))
    settings = loaded.settings
    names = read_names(settings, Commands(settings.cluster.timeout, settings.cluster.slurm_conf).read)
    mistakes = (*settings_mistakes(loaded), *unknown_names(settings, names))
    remarks = tuple(filter(None, (comparison_remark(settings.policy.system), _unchecked(names))))
    if as_json:
        print_json(CheckedSettings(str(loaded.file or ""), tuple(map(str, mistakes)), remarks))
    else:
        for mistake in mistakes:
            click.echo(f"synsched: {loaded.file or 'the settings'}: {mistake}", err=True)
        for remark in remarks:
            click.echo(f"synsched: {remark}", err=True)
        if not mistakes:
            click.echo(f"{f'{loaded.file} is' if loaded.file else 'no file: the defaults are'} in order")
    if mistakes:
        click.get_current_context().exit(SettingsError.exit_code)


def _unchecked(names: SlurmNames) -> str:
    if not names.untold:
        return ""
    return f"not all partitions, QOS, users and accounts were looked up, since Slurm does not tell them: {names.untold}"


@config.command()
def init() -> None:
    """Print the shipped settings file, every setting with its default and its meaning.

    \b
    Example:
      synsched config init > /etc/synsched/synsched.toml
    """
    click.echo(rendered("synsched.toml", **template_values()), nl=False)


_NODE_TEMPLATES: Final = frozenset({"gres.conf", "slurm.conf"})
"""Templates of Slurm's files, which need the nodes of the cluster."""
_MEMORY_TEMPLATE: Final = "synsched.service"
PAGES: Final[Mapping[str, Callable[[], Mapping[str, Sequence[object]]]]] = {
    "flags.md": options_by_group,
    "json.md": described_json,
    "metrics.md": metrics_by_group,
}
"""Pages that list what is defined elsewhere, in groups."""


def _parse_assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise click.BadParameter(f"'{text}' is not an assignment: write NAME=VALUE")
    return name, value


def _checked_values(template: str, given: Iterable[tuple[str, str]]) -> Mapping[str, str | int]:
    """Returns what was given, as a number where the template's default is one. Raises click.UsageError for a value that
    the template does not read, or that is no whole number."""
    read, checked = template_values_read(template), dict[str, str | int]()
    for name, value in given:
        if name not in read:
            near = get_close_matches(name, read, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it reads {', '.join(read) or 'none'}"
            raise click.UsageError(f"--set {name}={value}: template {template} reads no such value: {meant}")
        if isinstance(read[name], int) and not value.isdecimal():
            raise click.UsageError(f"--set {name}={value}: expected a whole number, such as {read[name]}")
        checked[name] = int(value) if isinstance(read[name], int) else value
    return checked


def _offered_templates(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    return ((name.removesuffix(".j2"), "") for name in template_names())


@click.command()
@click.argument("template", required=False, shell_complete=completion(_offered_templates))
@click.option(
    "--set", "given", type=_parse_assignment, multiple=True, metavar="NAME=VALUE", help="A value for the template."
)
@click.option("--user", default="synsched", show_default=True, help="The user that the daemon runs as.")
@click.pass_obj
def render(invocation: Invocation, *, template: str | None, given: tuple[tuple[str, str], ...], user: str) -> None:
    """Print a file to install.

    Fills a template with the current settings. Without a name, lists the templates.

    \b
    Example:
      synsched render synsched.service > /etc/systemd/system/synsched.service
      synsched render synsched.cron > /etc/cron.d/synsched
      synsched render sbatch.sh --set model=bert --set gpus=4
    """
    if template is None:
        click.echo("\n".join(name.removesuffix(".j2") for name in template_names()))
        return
    file = template.removesuffix(".j2")
    chosen = _checked_values(template, given)
    snapshot = connect_backend(invocation.settings).observe() if file in _NODE_TEMPLATES else None
    size = cluster_size(invocation.settings) if file == _MEMORY_TEMPLATE else DEFAULT_CLUSTER_SIZE
    values = template_values(invocation.loaded, snapshot=snapshot, user=user, size=size)
    groups = PAGES[file]() if file in PAGES else {}
    click.echo(rendered(template, **{**values, "groups": groups, **chosen}), nl=False)
