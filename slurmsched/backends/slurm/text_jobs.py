"""All jobs by one command, or single ones; and what to do when somebody's words imitate a job of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.records import JobRecord, anatomy, number_of, split
from slurmsched.backends.slurm.words import job_id

__all__ = ["TextJobs", "all_records", "records_of"]

_SHOW: Final = ("scontrol", "-v", "-a", "-d", "-o", "show", "job")
_MOST_ASKED_AGAIN: Final = 50
_GONE: Final = ("Invalid job id specified", "not found")


class TextJobs:
    """Jobs as `scontrol` prints them."""

    name = "commands"

    def records(self, commands: Commands) -> tuple[list[JobRecord], list[str]]:
        """See `JobSource`."""
        return all_records(commands)


def all_records(commands: Commands) -> tuple[list[JobRecord], list[str]]:
    """Every job, and a sentence on each that cannot be told. Raises BackendError."""
    found = split(commands.read(*_SHOW))
    if found.proven or not found.texts:
        return _taken_apart(found.texts)
    return _sorted_out(commands, found.texts)


def records_of(commands: Commands, job: str) -> list[JobRecord]:
    """One job, or none where Slurm knows it no more. All text is that job's own. Raises BackendError, UnsafeError."""
    try:
        text = commands.read(*_SHOW, job_id(job))
    except BackendError as error:
        if any(words in str(error) for words in _GONE):
            return []
        raise
    found = split(text)
    texts = found.texts if found.proven else ("\n".join(found.texts),)
    return [anatomy(text) for text in texts if text]


def _sorted_out(commands: Commands, texts: Sequence[str]) -> tuple[list[JobRecord], list[str]]:
    """More lines begin like a job than there are jobs: somebody's name or comment holds such a line.

    squeue says which numbers exist. A record that is too many shows by its number: it exists nowhere, or twice. It, and
    the genuine one before it, which may go on in it, are asked for one by one: what Slurm shows for one job is no one
    else's text.
    """
    there = set(commands.read("squeue", "-h", "-a", "-t", "all", "-o", "%A").split())
    numbers = [number_of(text) for text in texts]
    often = Counter(numbers)
    doubtful: set[str] = set()
    genuine = ""
    for number in numbers:
        if number not in there or often[number] > 1:
            doubtful |= {number, genuine} & there
        if number in there:
            genuine = number
    good = [text for text, number in zip(texts, numbers, strict=True) if number in there - doubtful]
    records, oddities = _taken_apart(good)
    for asked, number in enumerate(sorted(doubtful, key=int)):
        if asked >= _MOST_ASKED_AGAIN:
            oddities.append(f"job {number} is left out: names or comments of too many jobs imitate jobs")
            continue
        try:
            records += records_of(commands, number)
        except NotUnderstoodError as error:
            oddities.append(f"job {number} is left out: {error}")
    return records, oddities


def _taken_apart(texts: Sequence[str]) -> tuple[list[JobRecord], list[str]]:
    records: list[JobRecord] = []
    oddities: list[str] = []
    for text in texts:
        try:
            records.append(anatomy(text))
        except NotUnderstoodError as error:
            oddities.append(f"job {number_of(text)} is left out: {error}")
    return records, oddities
