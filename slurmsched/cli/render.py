"""`synsched render`."""

from __future__ import annotations

from typing import Final

import click

from slurmsched.backends.slurm.sbatch_options import options_by_group
from slurmsched.cli.cluster import cluster_size, connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.installation import template_values
from slurmsched.settings.memory import DEFAULT_CLUSTER_SIZE
from slurmsched.template_files import render as rendered
from slurmsched.template_files import template_names

_NODE_TEMPLATES: Final = frozenset({"gres.conf", "slurm.conf"})
"""Templates of Slurm's files, which need the nodes of the cluster."""
_MEMORY_TEMPLATE: Final = "synsched.service"
_OPTIONS_PAGE: Final = "flags.md"


def _parse_assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise click.BadParameter(f"'{text}' is not an assignment: write NAME=VALUE")
    return name, value


@click.command()
@click.argument("template", required=False)
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
    snapshot = connect_backend(invocation.settings).observe() if file in _NODE_TEMPLATES else None
    size = cluster_size(invocation.settings) if file == _MEMORY_TEMPLATE else DEFAULT_CLUSTER_SIZE
    values = template_values(invocation.loaded, snapshot=snapshot, user=user, size=size)
    groups = {"groups": options_by_group()} if file == _OPTIONS_PAGE else {}
    click.echo(rendered(template, **{**values, **groups, **dict(given)}), nl=False)
