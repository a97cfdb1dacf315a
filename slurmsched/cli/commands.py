"""The table of commands. A command's module is imported only when it is called, so that `status` starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: the module that defines it under the command's name, and its line in the help.

    `decides`: it runs decisions by the thousand, and no job of a user. Their linear algebra is of matrices so small
    that a second thread costs more than it brings, so it has one, as in the service.
    """

    module: str
    summary: str
    decides: bool = False


COMMANDS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "See": {
        "status": CommandEntry("status", "Show which jobs run, which wait and why."),
        "explain": CommandEntry("job", "Explain why a job waits, or runs where it does."),
        "history": CommandEntry("job", "Show what happened to a job."),
        "advise": CommandEntry("job", "Tell what jobs used of what they asked for."),
        "free": CommandEntry("status", "Show what could start right now."),
        "forecast": CommandEntry("plan", "Tell when waiting jobs will start and end.", decides=True),
        "plan": CommandEntry("plan", "Show what a round would do now."),
        "report": CommandEntry("status", "Write an HTML page of who runs, who waits and why."),
        "doctor": CommandEntry("doctor", "Check the installation and say how to fix it."),
    },
    "Submit": {
        "submit": CommandEntry("submit", "Submit a job with checked hints."),
    },
    "Run": {
        "run": CommandEntry("run", "Run scheduling rounds."),
        "pause": CommandEntry("control", "Change nothing until resumed."),
        "resume": CommandEntry("control", "Resume after a pause."),
        "release": CommandEntry("control", "Give jobs back to Slurm as they were submitted."),
        "forget": CommandEntry("control", "Delete what was learnt of a user."),
        "config": CommandEntry("config", "Show and check the settings."),
        "render": CommandEntry("config", "Print a file to install."),
        "schema": CommandEntry("schema", "Print the JSON schema of a command's --json."),
    },
    "Try": {
        "tryout": CommandEntry("tryout", "Tell what a month of your jobs would have been.", decides=True),
        "demo": CommandEntry("demo", "Watch a simulated cluster beside plain Slurm."),
        "dump": CommandEntry("recordings", "Write a round to a file."),
        "replay": CommandEntry("recordings", "Decide recorded rounds again."),
        "profile": CommandEntry("profile", "Measure models and show their profiles."),
        "trace": CommandEntry("trace", "Convert, generate and show traces."),
        "simulate": CommandEntry("simulate", "Run a trace through a policy on a virtual cluster.", decides=True),
        "compare": CommandEntry("compare", "Compare policies on the same workload.", decides=True),
        "fidelity": CommandEntry("fidelity", "Compare the simulator with this Slurm."),
        "reproduce": CommandEntry("reproduce", "Reproduce a published figure.", decides=True),
        "bench": CommandEntry("bench", "Measure rounds, decisions, reports and the database.", decides=True),
    },
}
