"""`synsched plan`."""

from __future__ import annotations

from pathlib import Path

import click

from slurmsched.backends.protocol import Backend
from slurmsched.backends.recorded import RecordedBackend, read_recording
from slurmsched.cli.cluster import configured_knowledge, connect_backend, stored_state
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import policy_options, with_defragmentation, with_policy
from slurmsched.daemon.config_fragments import render_fragments
from slurmsched.report.rounds import plan_view, planned_round
from slurmsched.rounds.round import run_round


@click.command()
@click.option(
    "--from",
    "recording",
    type=click.Path(path_type=Path),
    metavar="FILE.round",
    help="Decide this recording instead of the current cluster.",
)
@policy_options
@click.option("--defrag", is_flag=True, help="Also move running jobs to make room for waiting ones.")
@click.option("--commands", is_flag=True, help="Also show the exact Slurm commands.")
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

    Asks Slurm once, decides and plans, but changes and writes nothing. With --defrag the plan also has the fewest moves
    that let waiting jobs start, with their cost; 'synsched run --once --defrag' carries it out.

    \b
    Example:
      synsched plan --commands
      synsched plan --from monday.round --order srtf
    """
    settings = with_defragmentation(with_policy(invocation.settings, system, order), requested=defrag)
    cluster: Backend
    if recording is not None:
        recorded = read_recording(recording)
        cluster, snapshot, state = RecordedBackend([recorded]), recorded.snapshot, recorded.memory
    else:
        cluster = connect_backend(settings)
        with console(to_errors=True).status("asking Slurm"):
            snapshot = cluster.observe()
        state = stored_state(invocation.database_path, snapshot, settings.policy.system)
    files = () if recording is not None else render_fragments(settings, snapshot)
    result = run_round(
        snapshot, state, settings, configured_knowledge(settings), cluster.identity(), config_fragments=files
    )
    planned = planned_round(result, settings, cluster.commands)
    if as_json:
        print_json(planned)
    else:
        console().print(plan_view(planned, commands))
