"""`synsched tryout`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import which

import click

from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import (
    check_page_file,
    console,
    json_option,
    print_json,
    progress_reporter,
    typed_command,
    write_page,
)
from slurmsched.cli.parameters import complete_files
from slurmsched.comparison.site_shape import SiteShape, derive_shape, most_gpus_held, read_shape, shape_of_nodes
from slurmsched.comparison.tryout import BUDGET, TryoutOptions, run_tryout
from slurmsched.comparison.tryout_figures import tryout_figures
from slurmsched.report.tryout import Tryout, tryout_page, tryout_report, tryout_view
from slurmsched.simulation import parse_policy
from slurmsched.simulation.inputs import PLAIN_SLURM
from slurmsched.traces.accounting import SACCT_ARGUMENTS, SACCT_COMMAND, Accounting, read_accounting
from slurmsched.traces.tables import read_text

_SACCT_SECONDS = 300.0


def _wrapped(fields: str, width: int = 54) -> str:
    """Returns the fields as several -o, which sacct joins, in lines that a shell joins."""
    lines = [""]
    for field in fields.split(","):
        if len(lines[-1]) + len(field) >= width:
            lines.append("")
        lines[-1] += ("," if lines[-1] else "") + field
    return " \\\n".join(f"    -o {line}" for line in lines)


_HELP = f"""Tell what a month of your jobs would have been.

Reads what sacct printed (FILE, or - for standard input), simulates the same jobs under plain Slurm and under a policy,
and says what would have been: times, waits, restarts, who gains and who loses, how sure that is, and what to set.
Nothing is changed, and nothing has to be installed on the cluster, where the first lines of the example run.
Without FILE it runs sacct itself, if there is one.

\b
Example:
  SLURM_TIME_FORMAT=%s {" ".join(SACCT_ARGUMENTS[:7])} \\
{_wrapped(SACCT_ARGUMENTS[8])} > month.txt
  scontrol show node > nodes.txt
  synsched tryout month.txt --cluster nodes.txt --html month.html
"""


@click.command(help=_HELP)
@click.argument("file", metavar="[FILE]", required=False, shell_complete=complete_files)
@click.option(
    "--cluster",
    metavar="C",
    shell_complete=complete_files,
    help="What scontrol show node or sinfo printed, or TYPE:NODESxGPUS[:CPUS[:MEMORY]],... Default: derived.",
)
@click.option("--policy", default="unified", show_default=True, metavar="P", help="The policy, as in compare.")
@click.option(
    "--checkpoints", is_flag=True, help="Take all jobs to checkpoint when signalled, not only those that say so."
)
@click.option("--round", "period", default=300.0, show_default=True, metavar="SECONDS", help="Length of a round.")
@click.option("--overhead", default=60.0, show_default=True, metavar="SECONDS", help="Time that a restart costs a job.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=BUDGET / 60,
    show_default=True,
    help="Begin no other part of the period after these; 0 for all of it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Draws the parts of the period.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Worker processes. Default: one for each core.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file.")
@json_option("report.tryout:TryoutReport")
@click.pass_obj
def tryout(
    invocation: Invocation,
    /,
    *,
    file: str | None,
    cluster: str | None,
    policy: str,
    checkpoints: bool,
    period: float,
    overhead: float,
    minutes: float,
    seed: int,
    jobs: int | None,
    html: Path | None,
    as_json: bool,
) -> None:
    if not 1 <= period <= 86400 or not 0 <= overhead <= 86400:  # noqa: PLR2004  # a day
        raise click.UsageError("--round must be 1 to 86400 seconds, --overhead 0 to 86400")
    chosen = parse_policy(policy)
    if chosen.system == PLAIN_SLURM:
        raise click.UsageError("slurm is what --policy is compared with: name another policy")
    check_page_file(html)
    accounting, name = _accounting(invocation, file)
    shape = _shape(invocation, cluster, accounting, asked_slurm=file is None)
    options = TryoutOptions(
        policy=chosen.name,
        period=period,
        overhead=overhead,
        checkpoints=checkpoints,
        budget=60 * minutes or None,
        processes=jobs or os.cpu_count() or 1,
        seed=seed,
    )
    with progress_reporter(f"simulating {len(accounting.jobs)} jobs") as report_progress:
        run = run_tryout(accounting.jobs, shape.nodes, options, on_progress=report_progress)
    found = Tryout(
        accounting=accounting,
        shape=shape,
        run=run,
        figures=tryout_figures(run),
        file=name,
        command=typed_command(),
        written=invocation.now(),
        most_held=most_gpus_held(accounting.jobs),
    )
    if as_json:
        print_json(tryout_report(found))
    else:
        console().print(tryout_view(found))
    if html is not None:
        write_page(html, tryout_page(found))


def _accounting(invocation: Invocation, file: str | None) -> tuple[Accounting, str]:
    """Returns the jobs and where they come from: the file, standard input, or sacct itself."""
    if file is not None and file != "-":
        return read_accounting(read_text(file), Path(file).name), Path(file).name
    if file == "-" or not (sys.stdin is None or sys.stdin.isatty() or which("sacct")):
        text = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""
        return read_accounting(text, "standard input"), "standard input"
    if not which("sacct"):
        raise click.UsageError(f"name a file with what '{SACCT_COMMAND}' printed: there is no sacct here")
    text = Commands(_SACCT_SECONDS, invocation.settings.cluster.slurm_conf).read_accounting(
        *SACCT_ARGUMENTS, longest=_SACCT_SECONDS
    )
    return read_accounting(text, "sacct"), "sacct, 30 days"


def _shape(invocation: Invocation, cluster: str | None, accounting: Accounting, *, asked_slurm: bool) -> SiteShape:
    if cluster is not None:
        return read_shape(cluster)
    if asked_slurm and which("scontrol") and which("sacct"):
        snapshot = connect_backend(invocation.settings).observe()
        return shape_of_nodes(snapshot.nodes, f"the nodes of {snapshot.cluster or 'this cluster'}")
    return derive_shape(accounting.jobs)
