"""The table of commands. A command's module is imported when it is called, so that `status` starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["COMMANDS", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: the module that holds it under its own name, and the line that help shows for it."""

    module: str
    summary: str


COMMANDS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "See": {
        "status": Entry("status", "Show who runs, who waits and why."),
        "explain": Entry("explain", "Tell why a job runs where it does, or waits."),
        "history": Entry("history", "Show what happened to a job."),
        "free": Entry("free", "Show what could start right now."),
        "plan": Entry("plan", "Show what a round would do now."),
        "doctor": Entry("doctor", "Check the installation and say how to mend it."),
    },
    "Submit": {
        "submit": Entry("submit", "Submit a job with checked hints."),
    },
    "Run": {
        "run": Entry("run", "Run scheduling rounds."),
        "pause": Entry("switching", "Change nothing until resumed."),
        "resume": Entry("switching", "Go on after a pause."),
        "release": Entry("switching", "Give jobs back to Slurm as they were submitted."),
        "config": Entry("config", "Show and check the settings."),
        "render": Entry("render", "Print a file to install."),
    },
    "Try": {
        "demo": Entry("demo", "Watch a simulated cluster beside plain Slurm."),
        "dump": Entry("recordings", "Write a round to a file."),
        "replay": Entry("recordings", "Decide recorded rounds again."),
        "profile": Entry("profile", "Measure models, and look at what is known of them."),
        "trace": Entry("trace", "Read, make and look at traces."),
        "simulate": Entry("simulate", "Run a trace through a policy on a virtual cluster."),
        "compare": Entry("compare", "Compare policies on the same work."),
        "fidelity": Entry("fidelity", "Hold the simulator against this Slurm."),
        "reproduce": Entry("reproduce", "Measure a published figure again."),
        "bench": Entry("bench", "Measure rounds, decisions, placements, the wrapper of jobs, the database."),
    },
}
