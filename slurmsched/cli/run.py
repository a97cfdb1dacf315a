"""`synsched run`."""

from __future__ import annotations

import os
from typing import Final

import click

from slurmsched.cli.cluster import cluster_size, scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import MODE_CHOICE, with_defragmentation, with_mode
from slurmsched.daemon.loop import run_daemon
from slurmsched.daemon.loop import run_once as one_round_alone
from slurmsched.daemon.process import limit_own_memory
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.report.rounds import has_blocked_operation, round_view, worth_mailing
from slurmsched.settings.definition import Mode
from slurmsched.settings.memory import process_memory

EXIT_BLOCKED: Final = 3


@click.command()
@click.option("--once", is_flag=True, help="One round, then end; for cron. Quiet unless something changed.")
@click.option("--mode", type=MODE_CHOICE, help="Another mode than the settings name.")
@click.option("--defrag", is_flag=True, help="With --once, by system fgd: also move running jobs.")
@click.option("--keep-holds", is_flag=True, help="At the end keep held what is held, for a quick restart.")
@json_option
@click.pass_obj
def run(invocation: Invocation, *, once: bool, mode: str | None, defrag: bool, keep_holds: bool, as_json: bool) -> None:
    """Run scheduling rounds.

    As a daemon until SIGTERM, which gives everything held back to Slurm first; SIGHUP reads the settings again. With
    --once a single round, which ends at once while another 'run' is at work, and exits 1 the third time in a row that
    this happens. It exits 3 if the mode, a pause, the disable file, another daemon or missing rights kept it from a
    change it wanted; in mode observe nothing is wanted.

    \b
    Example:
      synsched run --mode observe
      synsched run --once
    """

    def assemble() -> SchedulerContext:
        settings = with_defragmentation(with_mode(invocation.reload().settings, mode), requested=defrag)
        limit_own_memory(process_memory(settings, cluster_size(settings)))
        return scheduler_context(settings)

    if (as_json or defrag) and not once:
        raise click.UsageError(f"{'--json' if as_json else '--defrag'} goes with --once")
    if not once:
        run_daemon(assemble, invocation.clock, os.environ, _log_line, keep_holds=keep_holds)
        return
    report = one_round_alone(assemble, invocation.clock, _log_line)
    if report is None:
        return
    in_mode, screen = with_mode(invocation.settings, mode).rounds.mode, console()
    if as_json:
        print_json({"round": report.id, "tally": report.tally, "outcomes": report.outcomes})
    elif screen.is_terminal or worth_mailing(report, in_mode):
        screen.print(round_view(report))
    if in_mode is not Mode.OBSERVE and has_blocked_operation(report):
        click.get_current_context().exit(EXIT_BLOCKED)


def _log_line(message: str) -> None:
    """Standard error is the journal under systemd, and mail under cron."""
    click.echo(f"synsched: {message}", err=True)
