"""`synsched submit`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

import click

from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.sbatch_options import without_comment
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import json_option
from slurmsched.cli.parameters import complete_files
from slurmsched.model import Hints, SynschedError, parse_hints
from slurmsched.model.hints import HINT_PREFIX, is_hint_word, lower
from slurmsched.settings.definition import Settings

_SBATCH_OPTIONS: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(context_settings=_SBATCH_OPTIONS)
@click.option("--model", metavar="NAME", help="The model that the job trains, such as resnet50.")
@click.option("--task", metavar="NAME", help="The kind of an unknown model: image, speech or language.")
@click.option("--ckpt", metavar="SIGNAL[@TIME]", help="The signal that makes it checkpoint, and how long that takes.")
@click.option("--duration", metavar="TIME", help="Run time with its proportional share of CPUs and memory, such as 2h.")
@click.option("--move", type=click.Choice(["yes", "no"]), help="Whether it may be restarted on other nodes.")
@click.option("--pack", type=click.Choice(["yes", "no"]), help="Whether it may share its GPUs with another job.")
@click.option("--fork", metavar="STEPS", help="Total steps of the job whose copies are the tasks of this array.")
@click.option("--idle-last", is_flag=True, help="It may be preempted first while GPUs of it are idle for long.")
@click.option("--tune-memory", is_flag=True, help="Its memory is only a cache and may be reduced.")
@click.option("--comment", default="", metavar="TEXT", help="A comment after the hints, in place of the script's.")
@click.option("--print", "only_print", is_flag=True, help="Print the sbatch command instead of running it.")
@click.option("--dry-run", is_flag=True, help="Tell when it would start and end, and submit nothing.")
@json_option("report.job_view:SubmissionForecast")
@click.argument(
    "sbatch",
    nargs=-1,
    type=click.UNPROCESSED,
    required=True,
    metavar="[SBATCH OPTIONS] SCRIPT [ARGS]",
    shell_complete=complete_files,
)
@click.pass_obj
def submit(
    invocation: Invocation,
    /,
    *,
    idle_last: bool,
    tune_memory: bool,
    comment: str,
    only_print: bool,
    dry_run: bool,
    as_json: bool,
    sbatch: tuple[str, ...],
    **hints: str | None,
) -> None:
    """Submit a job with checked hints.

    Refuses wrong hints before the job is queued, and says so where nothing is known of a model or task. The comment of
    the script stays, and its hints that no option here replaces. All other options go to sbatch, and the exit status is
    sbatch's once it has run.

    With --dry-run nothing is submitted: Slurm is asked whether it would take the job, which fails if not, and a
    simulation tells when it would start and end, as it asks and with fewer or other GPUs. --json goes with it.

    \b
    Example:
      synsched submit --model resnet50 --ckpt usr1@60 -- --gres=gpu:4 job.sh
      synsched submit --dry-run --model resnet50 -- --gres=gpu:4 job.sh
    """
    given = {**hints, "mem": "tune" if tune_memory else None, "idle": "last" if idle_last else None}
    arguments, written = without_comment(sbatch, os.environ)
    whole = _hint_comment(given, comment, written)
    command = ("sbatch", f"--comment={whole}", *arguments)
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run")
    if only_print:
        click.echo(shlex.join(command))
        return
    settings = invocation.settings
    for remark in _unknown_names(parse_hints(whole), settings):
        click.echo(f"synsched: {remark}", err=True)
    env = {"SYNSCHED_SPOOL": settings.reports.spool} if settings.reports.spool else {}
    if dry_run:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported: decisions by the thousand
        from slurmsched.cli.plan import forecast_dry_run  # noqa: PLC0415  # needs numpy: plain `submit` starts without it

        forecast_dry_run(invocation, command, env, as_json=as_json)
        return
    click.get_current_context().exit(submission.run(command, settings.cluster.slurm_conf, env))


def _hint_comment(hints: Mapping[str, str | None], comment: str, written: str) -> str:
    """Returns the comment with the hints in front: those given, and what else is `written` in the job's own comment,
    whose other words `comment` replaces. Raises click.UsageError for hints that could not be parsed."""
    given = {key: value for key, value in hints.items() if value is not None}
    if any(sign.isspace() for value in given.values() for sign in value):
        raise click.UsageError("a hint must not contain blanks: write resnet50, not 'resnet 50'")
    if any("," in value for value in given.values()):
        raise click.UsageError("a hint must not contain commas: give each hint by its own option")
    if any(map(is_hint_word, comment.split())):
        raise click.UsageError("give hints by options such as --model, not in --comment")
    words = written.split()
    at = next((at for at, word in enumerate(words) if is_hint_word(word)), None)
    items = [] if at is None else [item for item in words.pop(at)[len(HINT_PREFIX) :].split(",") if item]
    kept = [item for item in items if lower(item.partition("=")[0]) not in given]
    hint_word = HINT_PREFIX + ",".join((*kept, *(f"{key}={value}" for key, value in given.items())))
    behind = "" if at is None else " ".join(words[at:])  # where a hint may stand that was meant to be in the word
    if problems := parse_hints(f"{hint_word} {behind}").problems:
        raise click.UsageError("; ".join(problems))
    return f"{hint_word} {comment or ' '.join(words)}".rstrip()


def _unknown_names(hints: Hints, settings: Settings) -> Iterator[str]:
    """Yields what to say of a model or task of which there is no profile."""
    if hints.model is None and hints.task is None:
        return
    from slurmsched.cli.cluster import configured_knowledge  # noqa: PLC0415  # needs numpy, as above

    try:
        knowledge = configured_knowledge(settings)
    except SynschedError:
        return  # the profiles cannot be read here: whoever runs rounds is told
    if hints.task is not None and hints.task not in knowledge.tasks:
        yield f"task '{hints.task}' is unknown: known are {', '.join(knowledge.tasks)}"
    if hints.model is not None and hints.model not in knowledge.models and hints.task not in knowledge.tasks:
        near = get_close_matches(hints.model, knowledge.models, n=1)
        advice = f"did you mean '{near[0]}'?" if near else "--task says of which kind it is"
        yield f"model '{hints.model}' has no profile: {advice}"
