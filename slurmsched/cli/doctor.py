"""`synsched doctor`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwnam, getpwuid

import click

from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import user_name
from slurmsched.doctor.examination import Probes, examine
from slurmsched.doctor.finding import Finding, Verdict, finding_view
from slurmsched.doctor.slurm import read_names, unknown_names
from slurmsched.settings.definition import Settings


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, and whether nothing has to be fixed."""

    well: bool
    findings: tuple[Finding, ...]


@click.command()
@click.option("--user", metavar="NAME", help="For root: look as this user. Default: who owns the database's folder.")
@json_option("cli.doctor:Examination")
@click.pass_obj
def doctor(invocation: Invocation, *, user: str | None, as_json: bool) -> None:
    """Check the installation and say how to fix it.

    Checks the settings, Slurm's settings, releases, GPUs, our permissions, the clock, the hook, the database and the
    daemon. Exits 1 if something has to be fixed. Changes nothing; one job submission is rehearsed with
    'sbatch --test-only'. Called by root, it looks as the user that rounds run as: root may do what the daemon may not.

    \b
    Example:
      synsched doctor
    """
    invocation.tolerate_mistakes(quietly=True)
    settings = invocation.settings
    become(settings, user)
    cluster = settings.cluster
    commands = Commands(cluster.timeout, cluster.slurm_conf)
    probes = Probes(
        connect=lambda: connect_backend(settings),
        configuration=lambda: commands.read("scontrol", "show", "config"),
        rehearse=lambda comment: submission.dry_run(comment, cluster.slurm_conf, cluster.timeout),
        status=invocation.status,
        rejected_reports=invocation.rejected_reports,
        now=invocation.now,
        unknown_names=lambda: unknown_names(settings, read_names(settings, commands.read)),
    )
    findings: list[Finding] = []
    screen = console()
    for finding in examine(invocation.loaded, probes):
        findings.append(finding)
        if not as_json:
            screen.print(finding_view(finding))
    has_problem = any(finding.verdict is Verdict.PROBLEM for finding in findings)
    if as_json:
        print_json(Examination(not has_problem, tuple(findings)))
    click.get_current_context().exit(1 if has_problem else 0)


def become(settings: Settings, user: str | None) -> None:
    """Goes on as this user if root asks, or as the owner of the database's folder if none is named.

    Raises click.UsageError if there is no such user, or if another than root names one.
    """
    if os.geteuid() != 0:
        if user is not None and user != user_name():
            raise click.UsageError("only root looks as another user: run it as that user")
        return
    try:
        entry = getpwnam(user) if user is not None else getpwuid(Path(settings.storage.path).parent.stat().st_uid)
    except KeyError:
        if user is not None:
            raise click.UsageError(f"there is no user {user}") from None
        return
    except OSError:
        return
    if entry.pw_uid:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        os.environ |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
