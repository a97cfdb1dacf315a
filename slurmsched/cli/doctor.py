"""`synsched doctor`."""

from __future__ import annotations

import click

from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.doctor.examination import Probes, examine
from slurmsched.doctor.finding import Finding, Verdict, finding_view


@click.command()
@json_option
@click.pass_obj
def doctor(invocation: Invocation, *, as_json: bool) -> None:
    """Check the installation and say how to fix it.

    Checks Slurm's settings, releases, GPUs, our permissions, the clock, the hook, the database and the daemon. Exits 1
    if something has to be fixed. Changes nothing; one job submission is rehearsed with 'sbatch --test-only'.

    \b
    Example:
      synsched doctor
    """
    settings = invocation.settings
    cluster = settings.cluster
    commands = Commands(cluster.timeout, cluster.slurm_conf)
    probes = Probes(
        connect=lambda: connect_backend(settings),
        configuration=lambda: commands.read("scontrol", "show", "config"),
        rehearse=lambda comment: submission.dry_run(comment, cluster.slurm_conf, cluster.timeout),
        status=invocation.status,
        rejected_reports=invocation.rejected_reports,
        now=invocation.now,
    )
    findings: list[Finding] = []
    screen = console()
    for finding in examine(invocation.loaded, probes):
        findings.append(finding)
        if not as_json:
            screen.print(finding_view(finding))
    has_problem = any(finding.verdict is Verdict.PROBLEM for finding in findings)
    if as_json:
        print_json({"well": not has_problem, "findings": findings})
    click.get_current_context().exit(1 if has_problem else 0)
