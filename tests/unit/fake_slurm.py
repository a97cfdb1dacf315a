"""A fake Slurm at the process boundary: it answers what would be run, and fails on any command it does not know.

It keeps a small state, writes it as Slurm 24.11 does, and says what a real slurmctld was recorded to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurmsched.backends.slurm.commands import CommandResult
from tests.unit.fake_jobs import FakeJob, excluded, table

__all__ = ["FakeJob", "FakeNode", "FakeSlurm"]

CONFIG = """Configuration data as of 2026-11-21T01:21:13
ClusterName             = mini
PreemptExemptTime       = 00:05:00
SlurmUser               = slurm(64030)
SLURM_VERSION           = 24.11.5
"""
PARTITION = "PartitionName=gpu Default=YES MaxTime=UNLIMITED Nodes=n[1-2] PriorityTier=1 State=UP\n"
RESERVATION = (
    "ReservationName=maint StartTime=2026-11-21T01:00:00 EndTime=2026-11-21T05:00:00"
    " Nodes=n2 Users=root Accounts=(null)\n"
)
_NO_DBD = "slurm_persist_conn_open: failed to send persistent connection init message\n"


@dataclass
class FakeNode:
    """A node with 8 GPUs."""

    name: str
    weight: int = 1
    used: str = "gpu:v100:0(IDX:N/A)"
    state: str = "IDLE"
    cpus: int = 0
    memory: int = 0

    def text(self) -> str:
        """The line of `scontrol -d -o show node`."""
        return (
            f"NodeName={self.name} CPUAlloc={self.cpus} CPUEfctv=24 CPUTot=24 Sockets=2 CoresPerSocket=6"
            " ActiveFeatures=v100 Gres=gpu:v100:8"
            f" GresUsed={self.used} RealMemory=512000 AllocMem={self.memory} State={self.state}"
            f" Weight={self.weight} Partitions=gpu"
        )


class FakeSlurm:
    """Stands for `run_process`. `ran` are the changes in order, as text; `refusals` what is said no to, by its text.

    `meanwhile` is called once, before the first change: what somebody else does at that moment. `ignored` are update
    fields that Slurm takes without doing anything. `down` leaves every command unanswered.
    `unknown_columns` are those of squeue that this release has not.
    """

    def __init__(self, jobs: Sequence[FakeJob] = (), nodes: Sequence[FakeNode] = ()) -> None:
        self.jobs = {job.number: job for job in jobs}
        self.nodes = {node.name: node for node in nodes}
        self.ran: list[str] = []
        self.asked: list[str] = []
        self.refusals: dict[str, str] = {}
        self.ignored: set[str] = set()
        self.meanwhile: Callable[[FakeSlurm], None] = lambda _: None
        self.down = False
        self.levels = {"synsched": "Operator"}
        self.accounting_down = False
        self.private = "none"
        self.reservations = RESERVATION
        self.partitions = PARTITION
        self.release = "24.11.5"
        self.tracked = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/shard"
        self.configuration_error = ""
        self.preempts_by = "preempt/none"
        self.select_parameters = "CR_CORE_MEMORY"
        self.preempting = "normal||cluster\nurgent|normal|cluster\n"
        self.shares = "Account|User|RawShares\nroot||\n vision||3\n  vision|alice|parent\n"
        self.environment: Mapping[str, str] = {}
        self.unknown_columns: frozenset[str] = frozenset({"Exclusive"})

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        self.environment = env
        if self.down:
            return CommandResult(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
        tool, *words = argv
        answered = {
            "scontrol": self._scontrol,
            "squeue": self._squeue,
            "sacctmgr": self._sacctmgr,
            "sshare": self._sshare,
        }.get(tool)
        return answered(words, given) if answered else self._scancel(tool, words)

    def _scontrol(self, words: Sequence[str], given: str) -> CommandResult:
        match words:
            case []:
                return self._batch(given.splitlines())
            case ["update", *fields]:
                return self._batch([" ".join(["update", *fields])])
            case ["reconfigure"]:
                self.ran.append("reconfigure")
                return CommandResult(int(bool(self.configuration_error)), "", self.configuration_error)
            case ["-a", "-d", "-o"]:
                return self._shown(given.splitlines())
        return self._listed(words)

    def _squeue(self, words: Sequence[str], _given: str) -> CommandResult:
        self.asked.append("squeue")
        match words:
            case ["-h", "-a", "-t", "all", "-r", "-O", form, "-j", chosen]:
                found = [job for job in self.jobs.values() if job.answers_to(chosen.split(","))]
                each = [replace(job, array=task) for job in found for task in sorted(_tasks(job.array))]
                raw, error = table(each, form, self.unknown_columns)
                return CommandResult(0, raw.decode(errors="replace"), error, raw)
            case ["-h", "-a", "-t", "all", ("-O" | "-o") as kind, form, *chosen]:
                found = [job for job in self.jobs.values() if not chosen or job.answers_to(chosen[1].split(","))]
                if len(chosen) > 1 and "," not in chosen[1] and not found:
                    return CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n")
                raw, error = table(found, form, self.unknown_columns) if kind == "-O" else (excluded(found, form), "")
                return CommandResult(0, raw.decode(errors="replace"), error, raw)
        raise AssertionError(f"the fake Slurm knows no command squeue {' '.join(words)}")

    def _sacctmgr(self, words: Sequence[str], _given: str) -> CommandResult:
        self.asked.append(f"sacctmgr {words[2]}")
        if self.accounting_down:
            return CommandResult(1, "", _NO_DBD)
        match words:
            case ["-nP", "show", "user", name, "format=User,AdminLevel"]:
                user = name.removeprefix("name=")
                return CommandResult(0, f"{user}|{self.levels[user]}\n" if user in self.levels else "", "")
            case ["-nP", "show", "user", "format=User,AdminLevel"]:
                return CommandResult(
                    0, "alice|None\n" + "".join(f"{user}|{own}\n" for user, own in self.levels.items()), ""
                )
            case ["-nP", "show", "qos", "format=Name,Preempt,PreemptMode"]:
                self.asked.append("show qos")
                return CommandResult(int(not self.preempting), self.preempting, "" if self.preempting else _NO_DBD)
        raise AssertionError(f"the fake Slurm knows no command sacctmgr {' '.join(words)}")

    def _sshare(self, words: Sequence[str], _given: str) -> CommandResult:
        if [*words] != ["-a", "-P"]:
            raise AssertionError(f"the fake Slurm knows no command sshare {' '.join(words)}")
        error = "" if self.shares else _NO_DBD
        return CommandResult(int(not self.shares), self.shares, error)

    def _scancel(self, tool: str, words: Sequence[str]) -> CommandResult:
        match [tool, *words]:
            case ["scancel", "--ctld", signal, "--full", number]:
                return self._signalled(signal, number)
        raise AssertionError(f"the fake Slurm knows no command {tool} {' '.join(words)}")

    def _listed(self, words: Sequence[str]) -> CommandResult:
        what = [word for word in words if not word.startswith("-")]
        self.asked.append(" ".join(what))
        match what:
            case ["show", "job"]:
                lines = [job.text() for job in self.jobs.values()] or ["No jobs in the system"]
                return CommandResult(0, "".join(f"{line}\n" for line in lines), "")
            case ["show", "node"]:
                return CommandResult(0, "".join(f"{node.text()}\n" for node in self.nodes.values()), "")
            case ["show", "partition"]:
                return CommandResult(0, self.partitions, "")
            case ["show", "reservation"]:
                return CommandResult(0, self.reservations, "")
            case ["show", "config"]:
                own = f"PreemptType             = {self.preempts_by}\n"
                own += f"SelectTypeParameters    = {self.select_parameters}\n"
                own += f"PrivateData             = {self.private}\nAccountingStorageTRES   = {self.tracked}\n"
                return CommandResult(0, CONFIG.replace("24.11.5", self.release) + own, "")
        raise AssertionError(f"the fake Slurm knows no command scontrol {' '.join(words)}")

    def _shown(self, lines: Sequence[str]) -> CommandResult:
        """What scontrol prints for `show` lines on its standard input: an echo of each, and the answer behind it."""
        said, errors, code = "", "", 0
        for line in lines:
            said += f"scontrol: {line}\n"
            match line.split():
                case ["show", "hostnames", name]:
                    said, code = f"{said}{name}\n", 0
                case ["show", "job", number]:
                    self.asked.append(line)
                    found = self._found(number)
                    said += "".join(f"{job.text()}\n" for job in found)
                    errors += "" if found else "slurm_load_jobs error: Invalid job id specified\n"
                    code = int(not found)
                case _:
                    raise AssertionError(f"the fake Slurm is not shown {line}")
        return CommandResult(code, f"{said}scontrol: ", errors)

    def _found(self, number: str) -> list[FakeJob]:
        wanted = _tasks(re.sub(r"[\[\]]", "", number)) if "_" in number else set()
        for job in [*self.jobs.values()]:
            own = _tasks(job.array)
            if own & wanted and not own <= wanted:
                self._split_out(job, own & wanted)
        return [
            job for job in self.jobs.values() if job.answers_to([number]) or (wanted and _tasks(job.array) & wanted)
        ]

    def _split_out(self, job: FakeJob, tasks: set[str]) -> None:
        """Gives these tasks records of their own, as slurmctld does once it is asked to change only a part."""

        def in_order(some: set[str]) -> list[str]:
            return sorted(some, key=lambda task: int(task.partition("_")[2]))

        left = in_order(_tasks(job.array) - tasks)
        array, percent, throttle = job.array.partition("%")
        job.array = f"{array.partition('_')[0]}_{','.join(task.partition('_')[2] for task in left)}{percent}{throttle}"
        for task in in_order(tasks):
            number = max(self.jobs) + 1
            own = {name: dict(getattr(job, name)) for name in ("fields", "asked", "options")}
            self.jobs[number] = replace(job, number=number, array=task, **own)

    def _batch(self, lines: Sequence[str]) -> CommandResult:
        errors = []
        for line in lines:
            words = self._change(line)
            if words:
                errors.append(words)
        return CommandResult(int(bool(errors)), "", "".join(f"{error}\n" for error in errors))

    def _change(self, line: str) -> str:
        """Do it; what is written to standard error where it goes wrong."""
        self._before()
        self.ran.append(line)
        verb, _, rest = line.partition(" ")
        if rest.startswith("NodeName="):
            return self.refusals.get(line, "") or self._weigh(rest)
        number = re.sub(r"^(?:JobId=|Incomplete )", "", rest).split(" ", 1)[0]
        jobs = self._found(number)
        if not jobs:
            said = "{0}: Invalid job id specified" if "_" in number else "Invalid job id specified for job {0}"
            return said.format(number)
        said = next((words for key, words in self.refusals.items() if key in line), "")
        if said:
            return f"{said} for job {number}"
        for job in jobs:
            getattr(self, f"_{verb}")(job, rest)
        return ""

    def _before(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda _: None
        meanwhile(self)

    def _hold(self, job: FakeJob, _rest: str) -> None:
        job.priority, job.reason = 0, "JobHeldAdmin"

    def _uhold(self, job: FakeJob, _rest: str) -> None:
        job.priority, job.reason = 0, "JobHeldUser"

    def _release(self, job: FakeJob, _rest: str) -> None:
        job.priority, job.reason = 100, "None"

    def _requeuehold(self, job: FakeJob, rest: str) -> None:
        assert rest.startswith("Incomplete "), "a job that has just ended would run again"
        if job.state == "RUNNING":
            job.state, job.priority, job.reason = "PENDING", 0, "job_requeued_in_held_state"

    def _update(self, job: FakeJob, rest: str) -> None:
        for word in re.split(r" (?=[A-Z][A-Za-z]*=)", rest)[1:]:
            key, _, value = word.partition("=")
            if key in self.ignored:
                continue
            match key:
                case "Nice":
                    job.nice = int(value)
                case "AdminComment":
                    job.admin_comment = value
                case "TresPerNode" | "TresPerJob" | "TresPerTask" | "CpusPerTres" | "MemPerTres":
                    job.asked[key] = value
                case "TasksPerNode":
                    job.fields["NtasksPerN:B:S:C"] = f"{value}:0:*:*"
                case "CPUsPerTask":
                    job.fields["CPUs/Task"] = value
                case "MinMemoryNode":
                    job.fields[key] = f"{value}M"
                case "ReqNodeList" | "NumNodes" | "NumTasks" | "NumCPUs" | "MinCPUsNode" | "StartTime":
                    job.fields[key] = value
                case _:
                    raise AssertionError(f"the fake Slurm knows no field {key}")
        job.fields.pop("ReqTRES", None)  # slurmctld counts it anew

    def _weigh(self, rest: str) -> str:
        name, weight = (word.partition("=")[2] for word in rest.split())
        if name not in self.nodes:
            return "slurm_update error: Invalid node name specified"
        self.nodes[name].weight = int(weight)
        return ""

    def _signalled(self, signal: str, number: str) -> CommandResult:
        self._before()
        self.ran.append(f"scancel --ctld {signal} --full {number}")
        found = self._found(number)
        if found and found[0].state == "RUNNING" and number not in self.refusals:
            return CommandResult(0, "", "")
        words = self.refusals.get(number, "Invalid job id specified" if not found else "Job can not be altered now")
        return CommandResult(1, "", f"scancel: error: Kill job error on job id {number}: {words}\n")


def _tasks(listed: str) -> set[str]:
    """The tasks of `7_2,5-6`, each with its array."""
    array, _, tasks = listed.partition("%")[0].partition("_")
    tasks = tasks.rpartition(",")[0] if tasks.endswith("...") else tasks
    ends = [part.partition("-") for part in tasks.split(",") if part]
    return {f"{array}_{task}" for first, _, last in ends for task in range(int(first), int(last or first) + 1)}
