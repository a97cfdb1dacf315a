"""`synsched run`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click

from slurmsched.cli.cluster import cluster_size, scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json, write_page
from slurmsched.cli.parameters import MODE_CHOICE, with_defragmentation, with_mode
from slurmsched.daemon.isolation import format_trace
from slurmsched.daemon.log import DaemonLog, Severity, open_log
from slurmsched.daemon.loop import run_daemon
from slurmsched.daemon.process import limit_own_memory
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.daemon.single_round import run_once
from slurmsched.installation import process_memory
from slurmsched.model import Outcome, SynschedError
from slurmsched.report.rounds import has_blocked_operation, round_view, worth_mailing
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.journal import RoundStatistics

EXIT_BLOCKED: Final = 3


@dataclass(frozen=True, slots=True)
class AppliedRound:
    """A round, its figures, and what became of each operation."""

    round: int
    tally: RoundStatistics
    outcomes: tuple[Outcome, ...]


@click.command()
@click.option("--once", is_flag=True, help="Run one round, for cron. Quiet unless something changed.")
@click.option("--mode", type=MODE_CHOICE, help="Use this mode instead of rounds.mode.")
@click.option("--defrag", is_flag=True, help="With --once: also move running jobs for waiting ones.")
@click.option("--keep-holds", is_flag=True, help="Keep held jobs held at exit, for a quick restart.")
@json_option("cli.run:AppliedRound")
@click.pass_obj
def run(invocation: Invocation, *, once: bool, mode: str | None, defrag: bool, keep_holds: bool, as_json: bool) -> None:
    """Run scheduling rounds.

    Runs as a daemon until SIGTERM, after which it gives all held jobs back to Slurm and exits. SIGHUP reloads the
    settings. With --once it runs a single round. If another 'run' is active, --once exits at once, with status 1 the
    third time in a row. It exits 3 if the mode, a pause, the disable file, another daemon or missing permissions
    prevented a planned change; in mode observe it plans none.

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
        raise click.UsageError(f"{'--json' if as_json else '--defrag'} works only with --once")
    if not once:
        config = ("--config", str(invocation.config)) if invocation.config else ()
        synsched = (sys.executable, "-P", "-m", "slurmsched", *config)
        forecast, page = ((*synsched, command, "--background") for command in ("forecast", "report"))
        run_daemon(
            assemble, invocation.clock, os.environ, _open_log, keep_holds=keep_holds, forecast=forecast, page=page
        )
        return
    open_once = partial(_open_log, once=True)
    report = run_once(assemble, invocation.clock, open_once)
    if report is None:
        return
    if invocation.settings.storage.page:
        _write_page(invocation, Path(invocation.settings.storage.page), open_once(invocation.settings))
    used_mode, screen = with_mode(invocation.settings, mode).rounds.mode, console()
    if as_json:
        print_json(AppliedRound(report.id, report.tally, report.outcomes))
    elif screen.is_terminal or worth_mailing(report, used_mode):
        screen.print(round_view(report))
    if used_mode is not Mode.OBSERVE and has_blocked_operation(report):
        click.get_current_context().exit(EXIT_BLOCKED)


def _write_page(invocation: Invocation, path: Path, log: DaemonLog) -> None:
    """Writes the page of the live system once the round is over; a failure is only logged."""
    from slurmsched.report.live_page import current_page  # noqa: PLC0415  # most sites have none

    try:
        write_page(path, current_page(invocation.settings, invocation.now(), kept_up=True))
    except SynschedError as error:
        log.event(f"the page is not written: {error}", Severity.WARNING)
    except Exception as error:  # as for a round
        log.event(f"the page is not written: {format_trace(error)}", Severity.ERROR)


def _open_log(settings: Settings, *, once: bool = False) -> DaemonLog:
    """Returns the log that `daemon.log` asks for; cron sends what goes to standard error by mail."""
    return open_log(settings, os.environ, sys.stderr, once=once)
