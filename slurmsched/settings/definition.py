"""The definition of every setting: its type, default, meaning and bounds.

Validation, the shipped configuration file, `synsched config show` and the reference page all derive from these classes.
Times are in seconds here and may be written `90`, `90s`, `5m`, `2h`, `1d` in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """How much a round may change."""

    OBSERVE = "observe"
    """Decide and record, but change nothing."""
    ADVISE = "advise"
    """Also write notes on jobs and show what would be done."""
    PRIORITIZE = "prioritize"
    """Order the waiting jobs; Slurm places them."""
    ENFORCE = "enforce"
    """Place, size and requeue jobs."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Access to Slurm."""

    backend: str = field(
        default="auto",
        metadata={"doc": "how Slurm is reached", "choices": ("auto", "commands", "pyslurm")},
    )
    pyslurm_memory_max: int = field(
        default=4096,
        metadata={"doc": "limit of the address space of the process that runs pyslurm, in MiB", "at_least": 256},
    )
    slurm_conf: str = field(default="", metadata={"doc": "path of slurm.conf; if empty, SLURM_CONF is not changed"})
    timeout: float = field(
        default=30.0, metadata={"doc": "longest wait for an answer of slurmctld", "unit": "time", "at_least": 1}
    )
    associations: bool = field(
        default=False,
        metadata={
            "doc": "use the shares of users and accounts in Slurm (sshare) as tickets; beside tickets.accounts those of"
            " other accounts"
        },
    )
    narrow: bool = field(
        default=True,
        metadata={
            "doc": "where slurm.conf has the node synsched-never, a start names it too, so that slurmctld tests its job"
            " on no other nodes; false before that node is taken out again"
        },
    )
    others: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "settings files of the site's other clusters, which 'synsched status -M' shows too; their databases"
            " or published documents must be readable here"
        },
    )


@dataclass(frozen=True, slots=True)
class ManageSettings:
    """Which jobs are managed; other jobs are never touched."""

    partitions: tuple[str, ...] = field(default=(), metadata={"doc": "partitions whose GPU batch jobs are managed"})
    qos: tuple[str, ...] = field(default=(), metadata={"doc": "QOS whose GPU batch jobs are managed"})
    opt_in: bool = field(default=True, metadata={"doc": "manage every GPU batch job that has a synsched: hint"})
    never_partitions: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "partitions whose jobs are not managed, even with a hint, unless they name other partitions too"
        },
    )


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The mode and timing of rounds."""

    mode: Mode = field(default=Mode.OBSERVE, metadata={"doc": "how much a round may change"})
    period: float = field(
        default=300.0,
        metadata={"doc": "time from the start of one round to the start of the next", "unit": "time", "at_least": 1},
    )
    early_interval: float = field(
        default=3.0,
        metadata={
            "doc": (
                "shortest time between rounds that the daemon runs early, because jobs or nodes changed: they only"
                " start jobs on free resources; 0 for none"
            ),
            "unit": "time",
        },
    )
    apply_timeout: float = field(
        default=60.0,
        metadata={
            "doc": (
                "time that a round takes, from its first look at the cluster to its last, where it does not wait"
                " for checkpoints: holds and starts for which it does not suffice are planned anew at once"
            ),
            "unit": "time",
            "at_least": 1,
        },
    )
    settle_interval: float = field(
        default=2.0,
        metadata={
            "doc": "time between two polls of Slurm while the operations of a round take effect",
            "unit": "time",
            "at_least": 0.1,
        },
    )
    settle_timeout: float = field(
        default=120.0,
        metadata={
            "doc": (
                "a job that has not started this long after its release waits again with its previous request; sooner"
                " where Slurm's reason is one that waiting does not remove"
            ),
            "unit": "time",
        },
    )


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The scheduling policy."""

    system: str = field(default="unified", metadata={"doc": "the policy, one of those in the table below"})
    order: str = field(
        default="las",
        metadata={"doc": "who comes first", "choices": ("fifo", "srtf", "las", "ftf")},
    )
    las_queues: tuple[float, ...] = field(
        default=(3600.0, 14400.0, 86400.0),
        metadata={
            "doc": "upper bounds of the queues of order las, in attained GPU-seconds (Tiresias); empty for plain las"
        },
    )
    utility: str = field(
        default="timely",
        metadata={
            "doc": (
                "what hadar and hadare maximise: effective throughput as in the paper; short jobs first unless a long"
                " one would end last (timely); or the same with first claim for the longest jobs (makespan)"
            ),
            "choices": ("effective", "timely", "makespan"),
        },
    )
    evenness: float = field(
        default=2.0,
        metadata={
            "doc": (
                "how much more the jobs of users count who are behind their share, under unified: 0 is the shortest"
                " mean completion time, whoever the owners are"
            ),
            "at_least": 0,
        },
    )
    defragment: bool = field(
        default=False,
        metadata={"doc": "move running jobs to other nodes, within the guards, if a waiting job can then start"},
    )
    parts: bool = field(
        default=False,
        metadata={
            "doc": "also schedule jobs with parts of GPUs and jobs without GPUs; fgd and tesserae-packed always do"
        },
    )
    try_pairs: bool = field(
        default=False,
        metadata={
            "doc": (
                "let tesserae-packed also pair jobs of models that nobody measured together, where known pairs let"
                " expect a gain and both owners say gpumem; two that do less than one alone are moved apart"
            )
        },
    )
    idle_last: bool = field(
        default=False,
        metadata={
            "doc": (
                "rank running jobs with GPUs that are idle for `learning.idle_after` behind all others, where their"
                " owners agree by a hint (idle=last), so that they are preempted first"
            )
        },
    )
    profiles: str = field(
        default="", metadata={"doc": "file of measured profiles of models; if empty, the shipped ones are used"}
    )


@dataclass(frozen=True, slots=True)
class TicketSettings:
    """Each user's share of the GPUs, for systems gandiva-fair and unified."""

    users: tuple[str, ...] = field(
        default=(), metadata={"doc": 'tickets of users, each "USER=TICKETS", for example "alice=4"'}
    )
    accounts: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": 'tickets of accounts with the same parent, each "ACCOUNT=TICKETS" or "PARENT/ACCOUNT=TICKETS"'
        },
    )
    default: int = field(
        default=1,
        metadata={
            "doc": "tickets of a user that is not named, and of all accounts together of which neither tickets.accounts"
            " nor Slurm's shares tell",
            "at_least": 1,
        },
    )
    quantum: float = field(
        default=600.0,
        metadata={
            "doc": "shortest time slice of a job on one node, before another job may preempt it",
            "unit": "time",
            "at_least": 1,
        },
    )
    wide_quantum: float = field(
        default=1800.0,
        metadata={"doc": "shortest time slice of a job on several nodes", "unit": "time", "at_least": 1},
    )
    migrations: int = field(
        default=8, metadata={"doc": "most waiting jobs that a round assigns to another node", "at_least": 0}
    )
    trading: bool = field(default=True, metadata={"doc": "let users trade fast GPUs for slow ones if both gain"})


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Limits on what a round may do to running jobs."""

    min_run_time: float = field(
        default=1200.0,
        metadata={
            "doc": (
                "shortest run of a job before it may be preempted, to a tenth of a round, in which jobs start; after a"
                " restart at least twenty times what a restart costs, to the nearest round"
            ),
            "unit": "time",
        },
    )
    moves_per_round: int = field(
        default=8, metadata={"doc": "most jobs that a round may preempt or move", "at_least": 0}
    )
    moves_per_job_day: int = field(
        default=6, metadata={"doc": "most times that a job may be preempted or moved in 24 hours", "at_least": 0}
    )
    restart_cost: float = field(
        default=120.0,
        metadata={
            "doc": "time that a restart costs a job which has not measured one, in addition to checkpoint.lead",
            "unit": "time",
        },
    )
    require_checkpoint: bool = field(
        default=True, metadata={"doc": "preempt and move only jobs with a checkpoint signal in their hint"}
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Defaults and limits for the checkpoint hints of jobs."""

    lead: float = field(
        default=60.0,
        metadata={"doc": "time between the checkpoint signal and the requeue, if the hint names none", "unit": "time"},
    )
    longest_lead: float = field(
        default=900.0, metadata={"doc": "longest lead; a longer one in a hint is shortened to this", "unit": "time"}
    )


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Progress reports of jobs that use `slurmsched.jobside`."""

    spool: str = field(
        default="",
        metadata={
            "doc": "folder for the reports of jobs, on a file system that all nodes and the daemon share, with mode"
            " 1777, or 3773 to hide reports from other users; if empty, no reports are read"
        },
    )


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """What is learnt of jobs that have ended, for later jobs of the same owner."""

    accounting: bool = field(
        default=True,
        metadata={
            "doc": "ask Slurm's accounting (sacct) once a round which runs have ended and what they used; jobs without"
            " a measured profile are sized by earlier runs of the same work"
        },
    )
    lengths: bool = field(
        default=False,
        metadata={
            "doc": "expect how long jobs still run from what earlier runs of their owners took, with a hinted duration"
            " as one hint among others; needs `accounting`. Orders by length do without it better where all durations"
            " are hinted and true"
        },
    )
    longest_probe: float = field(
        default=4 * 3600.0,
        metadata={
            "doc": "the longest that a job may be expected to run, by earlier runs, its hint or its time limit, to be"
            " started with other CPUs than others of its work to measure what that changes, where its owner allows that"
            " (`cpus=probe`); 0 for no such probes. Needs `accounting`, which tells how many there were",
            "unit": "time",
        },
    )
    forecast_budget: float = field(
        default=20.0,
        metadata={
            "doc": "how long a forecast of when waiting jobs start may take, after each full round, in a process of"
            " lowest priority beside the daemon; 0 forecasts nothing, and nothing is forecast where a decision takes"
            " more than a quarter of it. Needs `storage.keep_snapshots`",
            "unit": "time",
        },
    )

    prometheus: str = field(
        default="",
        metadata={
            "doc": "URL of a Prometheus that is asked once a round how busy the GPUs of jobs were that have ended, and"
            " for their CPU time where accounting gathers none; it needs nvidia_gpu_exporter (of jobstats),"
            " slurm-job-exporter, or dcgm-exporter with its job mapping; if empty, none is asked"
        },
    )
    prometheus_cluster: str = field(
        default="",
        metadata={"doc": "label `cluster` of this cluster's series, where that Prometheus has those of others too"},
    )
    idle_after: float = field(
        default=3600.0,
        metadata={
            "doc": "name running jobs with a GPU that was used for less than 1 % of so long, as that Prometheus tells;"
            " at least 10m, 0 for none",
            "unit": "time",
        },
    )

    @property
    def knows_lengths(self) -> bool:
        """Whether decisions go by the lengths of earlier runs."""
        return self.accounting and self.lengths


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The heartbeat that job_submit.lua and the watchdog check: without one, jobs run under plain Slurm."""

    heartbeat: str = field(
        default="/var/lib/synsched/heartbeat",
        metadata={"doc": "heartbeat file; its first line is `unix-time mode period`"},
    )
    stale_after: float = field(
        default=900.0,
        metadata={"doc": "a heartbeat older than this means that the daemon is down", "unit": "time"},
    )
    disable_file: str = field(
        default="/etc/synsched/disable", metadata={"doc": "while this file exists, nothing is changed"}
    )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Changes to nodes, job notes and Slurm's configuration files; most need SlurmUser or root."""

    weights: bool = field(
        default=False,
        metadata={"doc": "set the weights of nodes so that Slurm fills them in the same order as the policy"},
    )
    fragments: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "configuration files to render, each `TEMPLATE=PATH`, for example gres.conf.j2=/etc/slurm/gres.conf"
        },
    )
    admin_comment: bool = field(
        default=False,
        metadata={"doc": "write a note into the AdminComment of jobs where it is empty or already ours"},
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The database, which only the daemon's user can read, and what is published from it."""

    path: str = field(default="/var/lib/synsched/synsched.db", metadata={"doc": "path of the SQLite database"})
    keep_days: int = field(default=90, metadata={"doc": "days of history to keep", "at_least": 1})
    keep_snapshots: int = field(
        default=200, metadata={"doc": "number of latest rounds whose whole snapshot is kept for replay", "at_least": 0}
    )
    export: str = field(
        default="",
        metadata={
            "doc": "folder of the documents that other users read in place of the database, rewritten after each round;"
            " if empty, the folder `export` beside the database"
        },
    )
    export_ended: float = field(
        default=86400.0,
        metadata={"doc": "how long ended jobs stay in these documents, the last 2000 at most", "unit": "time"},
    )
    page: str = field(
        default="",
        metadata={
            "doc": "file of an HTML page of what everybody may see, for a web server, rewritten after rounds beside the"
            " daemon; if empty, none is written"
        },
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Figures of the rounds, jobs and GPUs for Prometheus; everybody who reaches the port or the file may read them."""

    listen: str = field(
        default="",
        metadata={
            "doc": "address and port on which the daemon answers scrapes of `/metrics`, for example"
            ' "127.0.0.1:9797"; if empty, there is no port'
        },
    )
    textfile: str = field(
        default="",
        metadata={
            "doc": "file that is rewritten after each round, also by `run --once`, for the textfile collector of"
            " node_exporter, which reads files whose names end in .prom; if empty, none is"
        },
    )
    users: int = field(
        default=0,
        metadata={
            "doc": "number of users whose shares by tickets are named, those who are due most; 0 names nobody. Never"
            " where PrivateData hides what users have",
        },
    )


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """The process of the daemon."""

    memory_max: int = field(
        default=0,
        metadata={
            "doc": "memory limit of the daemon and the Slurm commands that it runs, in MiB; 0 means 512, plus 1/16 for"
            " each job of MaxJobCount, plus 1/4 for each node"
        },
    )
    log: str = field(
        default="auto",
        metadata={
            "doc": (
                "where the log goes: the systemd journal with fields, or standard error as text or as one JSON object"
                " per line; auto takes the journal where systemd runs the daemon, else text"
            ),
            "choices": ("auto", "journal", "text", "json"),
        },
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; `Settings()` has the defaults."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    manage: ManageSettings = field(default_factory=ManageSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    tickets: TicketSettings = field(default_factory=TicketSettings)
    guards: GuardSettings = field(default_factory=GuardSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    reports: ReportSettings = field(default_factory=ReportSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    hook: HookSettings = field(default_factory=HookSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
