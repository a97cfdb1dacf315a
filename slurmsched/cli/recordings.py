"""`synsched dump` and `synsched replay`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click

from slurmsched.backends.recorded import (
    RecordedBackend,
    RecordingError,
    read_recording,
    unpack_recording,
    write_recording,
)
from slurmsched.cli.cluster import configured_knowledge, connect_backend, stored_state
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json, with_progress
from slurmsched.cli.parameters import policy_options, with_policy
from slurmsched.knowledge import Knowledge
from slurmsched.model.reasons import pluralise
from slurmsched.report.rounds import ReplayedRound, planned_round, replay_view
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.round")
@click.option(
    "--round", "number", type=int, metavar="N", help="Write round N of the database instead of the current cluster."
)
@click.pass_obj
def dump(invocation: Invocation, *, file: Path, number: int | None) -> None:
    """Write a round to a file.

    The file holds all jobs and nodes as Slurm shows them, with their names, so that the round can be decided again
    elsewhere.

    \b
    Example:
      synsched dump now.round
      synsched dump --round 1234 odd.round
    """
    if number is None:
        snapshot = connect_backend(invocation.settings).observe()
        state = stored_state(invocation.database_path, snapshot, invocation.settings)
    else:
        with invocation.open_database() as store:
            stored = store.recording(number)
        if stored is None:
            raise RecordingError(f"round {number} is not kept: storage.keep_snapshots sets how many rounds are")
        recording = unpack_recording(stored[1])
        snapshot, state = recording.snapshot, recording.memory
    write_recording(file, snapshot, state)
    click.echo(f"{file}: {pluralise(len(snapshot.jobs), 'job')} on {pluralise(len(snapshot.nodes), 'node')}")


@dataclass(frozen=True, slots=True)
class ReplayedRounds:
    """Recorded rounds, decided again in the order in which they were named."""

    rounds: tuple[ReplayedRound, ...]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.round...")
@policy_options
@json_option("cli.recordings:ReplayedRounds")
@click.pass_obj
def replay(
    invocation: Invocation, *, files: tuple[Path, ...], system: str | None, order: str | None, as_json: bool
) -> None:
    """Decide recorded rounds again.

    Prints one line for each recording; 'synsched plan --from FILE.round' shows a round in full.

    \b
    Example:
      synsched replay --system hadar monday/*.round
    """
    settings = with_policy(invocation.settings, system, order)
    rounds = list(_replay_rounds(files, settings, configured_knowledge(settings)))
    if as_json:
        print_json(ReplayedRounds(tuple(rounds)))
    else:
        console().print(replay_view(rounds))


def _replay_rounds(files: tuple[Path, ...], settings: Settings, knowledge: Knowledge) -> Iterator[ReplayedRound]:
    for file in with_progress(files, "deciding again"):
        recording = read_recording(file)
        cluster = RecordedBackend([recording])
        began = perf_counter()
        result = run_round(recording.snapshot, recording.memory, settings, knowledge, cluster.identity())
        took = perf_counter() - began
        yield ReplayedRound(file.name, planned_round(result, settings, cluster.commands), took)
