"""`synsched profile`."""

from __future__ import annotations

import click

from slurmsched.cli.cluster import knowledge
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.profiling import run
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.checking import checked
from slurmsched.model import SynschedError, plain
from slurmsched.report.drift_view import drift_view, drifts
from slurmsched.report.profile_view import checked_view, profile_view, profiles_view
from slurmsched.simulation.inputs import knowledge_from

__all__ = ["profile"]

_FILE = click.option("--profiles", metavar="F", help="A file of ours or of Synergy's; the settings' own without it.")


class NoProfileError(SynschedError):
    """Nothing is known of a model, or nothing that could be checked."""

    exit_code = 2


@click.group()
def profile() -> None:
    """Measure models, and look at what is known of them.

    \b
    Example:
      synsched profile show resnet50
    """


@profile.command("show")
@click.argument("model", required=False)
@_FILE
@json_option
@click.pass_obj
def show(invocation: Invocation, /, *, model: str | None, profiles: str | None, as_json: bool) -> None:
    """Show how fast a model is with what, or list all models.

    \b
    Example:
      synsched profile show
      synsched profile show resnet50 --profiles measured.toml
    """
    known = _known(invocation, profiles)
    if model is None:
        if as_json:
            print_json({"models": list(known.models.values()), "tasks": list(known.tasks.values())})
        else:
            console().print(profiles_view(known))
        return
    found = known.models.get(model) or known.tasks.get(model)
    if found is None:
        raise NoProfileError(f"nothing is known of {model}: 'synsched profile show' lists what is")
    if as_json:
        print_json(found)
    else:
        console().print(profile_view(found))


@profile.command("check")
@_FILE
@json_option
@click.pass_obj
def check(invocation: Invocation, /, *, profiles: str | None, as_json: bool) -> None:
    """Check what optimistic profiling would make of measured matrices.

    Each model is profiled as if its matrix were the cluster: how many short runs that takes, of how many combinations
    of CPUs and memory, and how far the result is from what was measured. Nothing runs.

    \b
    Example:
      synsched profile check --profiles profiles.json
    """
    found = checked(_known(invocation, profiles))
    if not found:
        raise NoProfileError("no model here has a matrix over memory: name a file of measured ones with --profiles")
    if as_json:
        print_json({"models": list(found.values())})
    else:
        console().print(checked_view(found))


@profile.command("measured")
@_FILE
@json_option
@click.pass_obj
def measured(invocation: Invocation, /, *, profiles: str | None, as_json: bool) -> None:
    """Show how fast jobs say they are, beside what was profiled.

    A profile of 'synsched profile run' is in steps per second, and drift is how far a job is from it; of other profiles
    only the ratios are known.

    \b
    Example:
      synsched profile measured
    """
    with invocation.shown(history=True) as opened:
        found = drifts(opened.measured(), _known(invocation, profiles), invocation.now())
    if as_json:
        print_json({"jobs": [{"drift": drift.part, **plain(drift)} for drift in found]})
    else:
        console().print(drift_view(found))


profile.add_command(run)


def _known(invocation: Invocation, profiles: str | None) -> Knowledge:
    return knowledge_from(profiles) if profiles else knowledge(invocation.settings)
