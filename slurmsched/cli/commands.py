"""The table of commands. A command's module is imported when it is called, so that `status` starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: the module that holds it under its own name, and the line that help shows for it."""

    module: str
    summary: str


COMMANDS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "See": {
        "status": CommandEntry("status", "Show who runs, who waits and why."),
        "explain": CommandEntry("explain", "Tell why a job runs where it does, or waits."),
        "history": CommandEntry("history", "Show what happened to a job."),
        "free": CommandEntry("free", "Show what could start right now."),
        "plan": CommandEntry("plan", "Show what a round would do now."),
        "doctor": CommandEntry("doctor", "Check the installation and say how to mend it."),
    },
    "Submit": {
        "submit": CommandEntry("submit", "Submit a job with checked hints."),
    },
    "Run": {
        "run": CommandEntry("run", "Run scheduling rounds."),
        "pause": CommandEntry("control", "Change nothing until resumed."),
        "resume": CommandEntry("control", "Go on after a pause."),
        "release": CommandEntry("control", "Give jobs back to Slurm as they were submitted."),
        "config": CommandEntry("config", "Show and check the settings."),
        "render": CommandEntry("render", "Print a file to install."),
    },
    "Try": {
        "demo": CommandEntry("demo", "Watch a simulated cluster beside plain Slurm."),
        "dump": CommandEntry("recordings", "Write a round to a file."),
        "replay": CommandEntry("recordings", "Decide recorded rounds again."),
        "profile": CommandEntry("profile", "Measure models, and look at what is known of them."),
        "trace": CommandEntry("trace", "Read, make and look at traces."),
        "simulate": CommandEntry("simulate", "Run a trace through a policy on a virtual cluster."),
        "compare": CommandEntry("compare", "Compare policies on the same work."),
        "fidelity": CommandEntry("fidelity", "Hold the simulator against this Slurm."),
        "reproduce": CommandEntry("reproduce", "Measure a published figure again."),
        "bench": CommandEntry("bench", "Measure rounds, decisions, placements, the wrapper of jobs, the database."),
    },
}
