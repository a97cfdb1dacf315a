"""`synsched config`."""

from __future__ import annotations

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.installation import template_values
from slurmsched.policies.policies import settings_problem
from slurmsched.report.tables import Column, Listing
from slurmsched.rounds.guards import guards_problem
from slurmsched.rounds.scope import scope_problem
from slurmsched.settings.file import SettingsError, setting_rows
from slurmsched.template_files import render


@click.group()
def config() -> None:
    """Show and check the settings.

    \b
    Example:
      synsched config init > /etc/synsched/synsched.toml
      synsched config check
      synsched config show
    """


@config.command()
@json_option
@click.pass_obj
def show(invocation: Invocation, *, as_json: bool) -> None:
    """Show every setting in force and where it comes from.

    \b
    Example:
      synsched config show
    """
    found = setting_rows(invocation.loaded)
    if as_json:
        print_json({"file": str(invocation.loaded.file or ""), "settings": found})
        return
    columns = (Column("SETTING"), Column("FROM"), Column("VALUE"))
    console().print(Listing(columns, [(row.name, row.origin, row.value) for row in found]))


@config.command()
@click.pass_obj
def check(invocation: Invocation) -> None:
    """Read the settings file as the daemon would; exit 2 if it is wrong.

    Wrong is also a policy that does not exist, a setting that the chosen policy does not read, a guard that contradicts
    it, two settings that name one file, and partitions that leave nothing to manage.

    \b
    Example:
      synsched --config new.toml config check
    """
    loaded = invocation.loaded
    policy = loaded.settings.policy
    changed = {row.name for row in setting_rows(loaded) if row.value != row.default}
    problem = (
        settings_problem(policy.system, policy.order, changed)
        or guards_problem(loaded.settings, changed)
        or scope_problem(loaded.settings.manage)
    )
    if problem:
        raise SettingsError(f"{loaded.file or 'the settings'}: {problem}")
    where = f"{loaded.file} is" if loaded.file else "no file: the defaults are"
    click.echo(f"{where} in order")


@config.command()
def init() -> None:
    """Print the shipped settings file, every setting with its default and its meaning.

    \b
    Example:
      synsched config init > /etc/synsched/synsched.toml
    """
    click.echo(render("synsched.toml", **template_values()), nl=False)
