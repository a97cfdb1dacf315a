"""`synsched plan`."""

from __future__ import annotations

from pathlib import Path

import click

from slurmsched.backends.protocol import Backend
from slurmsched.backends.recorded import RecordedBackend, load
from slurmsched.cli.cluster import backend, knowledge, remembered
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.policy import defragmenting, policy_options, with_policy
from slurmsched.daemon.fragments import fragments
from slurmsched.report.plan_view import plan_view
from slurmsched.report.planned import planned
from slurmsched.rounds.round import run_round

__all__ = ["plan"]


@click.command()
@click.option(
    "--from",
    "recording",
    type=click.Path(path_type=Path),
    metavar="FILE.round",
    help="Decide this recording instead of the cluster as it is.",
)
@policy_options
@click.option("--defrag", is_flag=True, help="By system fgd: also move running jobs for waiting ones.")
@click.option("--commands", is_flag=True, help="Also the exact Slurm commands.")
@json_option
@click.pass_obj
def plan(
    invocation: Invocation,
    *,
    recording: Path | None,
    system: str | None,
    order: str | None,
    defrag: bool,
    commands: bool,
    as_json: bool,
) -> None:
    """Show what a round would do now.

    Asks Slurm once, decides and plans; nothing is changed and nothing is written. With --defrag the plan has the fewest
    moves that let waiting jobs start, with their cost; 'synsched run --once --defrag' carries it out. Such a round is
    decided by system fgd, whatever the settings name, for only it moves jobs for that.

    \b
    Example:
      synsched plan --commands
      synsched plan --from monday.round --order srtf
    """
    settings = defragmenting(with_policy(invocation.settings, system, order), asked=defrag, system=system)
    cluster: Backend
    if recording is not None:
        recorded = load(recording)
        cluster, snapshot, memory = RecordedBackend([recorded]), recorded.snapshot, recorded.memory
    else:
        cluster = backend(settings)
        with console(to_errors=True).status("asking Slurm"):
            snapshot = cluster.observe()
        memory = remembered(invocation.database, snapshot, settings.policy.system)
    files = () if recording is not None else fragments(settings, snapshot)
    result = run_round(snapshot, memory, settings, knowledge(settings), cluster.identity(), fragments=files)
    shown = planned(result, settings, cluster.commands)
    if as_json:
        print_json(shown)
    else:
        console().print(plan_view(shown, commands))
