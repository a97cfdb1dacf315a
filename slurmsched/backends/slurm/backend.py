"""The Backend protocol for a Slurm cluster. Each poll reads nodes and jobs; what seldom changes is cached."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Final, Generic, TypeVar

from slurmsched.backends.protocol import (
    Backend,
    BackendError,
    CallCounts,
    FinishedPage,
    Identity,
    JobOrigin,
    UnreachableError,
)
from slurmsched.backends.slurm.accounting import (
    effective_user,
    parse_associations,
    read_finished,
    read_identity,
    read_operators,
)
from slurmsched.backends.slurm.cluster import (
    SlurmctldConfiguration,
    count_shards_by_job,
    parse_configuration,
    with_cpu_units,
    with_job_defaults,
    with_preemption,
)
from slurmsched.backends.slurm.command_source import CommandSource, PartitionInfo, PollSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import PyslurmUnavailableError, UnsafeCommandError
from slurmsched.backends.slurm.executor import BatchExecutor, RestartDelays
from slurmsched.backends.slurm.jobs import (
    with_gpu_defaults,
    with_types_of_shards,
    without_memory,
    without_shards_by_task,
)
from slurmsched.backends.slurm.limits import read_limits, read_preempting_qos
from slurmsched.backends.slurm.operation_commands import commands_for
from slurmsched.backends.slurm.origins import read_origins
from slurmsched.backends.slurm.placeholder import PLACEHOLDER, narrowing_partitions, without_placeholder
from slurmsched.backends.slurm.pyslurm_source import PyslurmSource
from slurmsched.backends.slurm.requests import DEFAULT_FORM, RequestForm
from slurmsched.model import Association, JobId, Node, Operation, Outcome, Reservation, Snapshot, Verb
from slurmsched.model.limits import NO_LIMITS, Limits
from slurmsched.settings.definition import ClusterSettings

_PARTITION_MAX_AGE: Final = 60.0
"""Seconds after which partitions and associations are read again."""
_CONFIGURATION_MAX_AGE: Final = 3600.0
"""Seconds after which slurmctld's configuration, the list of operators and our own rights are read again."""
_RIGHTS_RETRY: Final = 60.0
"""Seconds after which rights that are unknown or too few are read again, since they may be given at any time."""
_RIGHTS_REST: Final = 20.0
"""Reading the rights waits for this many times its last duration: where slurmdbd hangs it takes until the timeout."""


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of one poll: the snapshot, and the form of each job's request."""

    snapshot: Snapshot
    forms: Mapping[JobId, RequestForm]
    remarks: tuple[str, ...] = ()
    """How the poll was read, one sentence each."""


Read = TypeVar("Read")

_EVENTS: Final = re.compile(
    r"Jobs (?:submitted|completed|canceled|failed): +\d+"
    r"|(?:REQUEST_(?:SUBMIT_BATCH_(?:HET_)?JOB|RESOURCE_ALLOCATION|UPDATE_(?:JOB|NODE|PARTITION|RESERVATION)"
    r"|(?:CREATE|DELETE)_(?:RESERVATION|PARTITION)|KILL_JOBS?|JOB_REQUEUE|SUSPEND|RECONFIGURE"
    r"|COMPLETE_(?:BATCH_SCRIPT|JOB_ALLOCATION))"
    r"|MESSAGE_(?:EPILOG_COMPLETE|NODE_REGISTRATION_STATUS)|ACCOUNTING_UPDATE_MSG) +\( *\d+\) +count:\d+"
)
"""What sdiag counts that may let a waiting job start. Counters begin anew at midnight, which costs one early round."""


def parse_activity(sdiag: str) -> str:
    """The counters of sdiag's text that change when jobs or nodes do, without those by user."""
    return "; ".join(_EVENTS.findall(sdiag.partition("statistics by user")[0]))


class ClusterReader:
    """Reads a cluster. `clock` returns unix seconds; with `associations` the shares of users are read too, and with
    `narrows` starts name the placeholder where there is one."""

    def __init__(
        self,
        commands: Commands,
        source: PollSource,
        clock: Callable[[], float],
        associations: bool = False,
        narrows: bool = True,
    ) -> None:
        self._commands = commands
        self._source = source
        self._clock = clock
        self._associations = associations
        self._narrows = narrows
        self._configuration: tuple[float, SlurmctldConfiguration] | None = None
        self._partition_info: tuple[float, PartitionInfo] | None = None
        self._association_cache: tuple[float, tuple[Association, ...], tuple[str, ...]] | None = None
        self._operator_cache: tuple[float, frozenset[str]] | None = None
        self._limits: tuple[float, Limits] | None = None
        self._preempting_qos: tuple[float, frozenset[str] | None] | None = None
        self._narrowed = _NarrowedForms()
        self._counted = _CountedNodes()

    def poll(self) -> PollResult:
        """Reads the whole cluster. Raises BackendError."""
        self._commands.calls.polls += 1
        time, configuration = self._clock(), self.configuration()
        known = self._partition_info
        view = self._source.read(
            self._commands,
            configuration,
            with_partitions=known is None or not 0 <= time - known[0] < _PARTITION_MAX_AGE,
        )
        if view.partition_info is not None:
            known = self._partition_info = time, view.partition_info
        partition_info = known[1] if known else PartitionInfo(())
        partitions = with_preemption(
            (with_job_defaults(of, configuration) for of in partition_info.partitions), configuration
        )
        narrowing = narrowing_partitions(partitions.values(), view.nodes, configuration.release)
        partitions = without_placeholder(partitions, narrowing)
        jobs = tuple(
            with_gpu_defaults(job, (partitions[name] for name in job.partitions if name in partitions))
            for job in {parsed.job.id: parsed.job for parsed in view.jobs}.values()
        )
        forms = {parsed.job.id: parsed.request_form for parsed in view.jobs}
        if configuration.takes_shards_of_several_gpus:
            jobs = tuple(without_shards_by_task(job, forms[job.id]) for job in jobs)
        if not configuration.schedules_memory:
            jobs = tuple(map(without_memory, jobs))
        associations, unread = self._read_associations(time)
        shown = (node for node in view.nodes if node.name != PLACEHOLDER)
        counted = count_shards_by_job(self._counted.of(shown, configuration.select_parameters), jobs)
        nodes = {node.name: node for node in _with_reservations(counted, Reservation.active(view.reservations, time))}
        jobs = tuple(with_types_of_shards(job, nodes) for job in jobs)
        snapshot = Snapshot(
            time=time,
            nodes=tuple(nodes.values()),
            jobs=jobs,
            partitions=tuple(partitions.values()),
            reservations=view.reservations,
            cluster=configuration.cluster,
            release=configuration.release,
            oddities=(*partition_info.oddities, *unread, *view.oddities),
            associations=associations,
            set_aside=tuple(view.set_aside),
            private_data=configuration.private_data,
            operators=self._read_operators(configuration),
            limits=self._read_limits(configuration, time),
            preempting_qos=self._read_preempting_qos(configuration, time),
            widens_shards=configuration.widens_shards,
        )
        narrowed = self._narrowed.of(forms, snapshot) if self._narrows and narrowing else forms
        return PollResult(snapshot, narrowed, view.remarks)

    def configuration(self) -> SlurmctldConfiguration:
        """slurmctld's configuration, at most an hour old. Raises BackendError."""
        now = self._clock()
        if self._configuration is None or not 0 <= now - self._configuration[0] < _CONFIGURATION_MAX_AGE:
            self._configuration = now, parse_configuration(self._commands.read("scontrol", "show", "config"))
        return self._configuration[1]

    def invalidate(self) -> None:
        """Drops all caches, as the configuration has changed."""
        self._configuration = self._partition_info = self._association_cache = self._operator_cache = None
        self._limits = self._preempting_qos = None

    def _read_operators(self, configuration: SlurmctldConfiguration) -> frozenset[str]:
        """The users who see what PrivateData hides, at most an hour old; empty, and not read, if it hides nothing."""
        if not configuration.private_data:
            return frozenset()
        now = self._clock()
        if self._operator_cache is None or not 0 <= now - self._operator_cache[0] < _CONFIGURATION_MAX_AGE:
            self._operator_cache = now, read_operators(self._commands, configuration.slurm_user)
        return self._operator_cache[1]

    def _read_limits(self, configuration: SlurmctldConfiguration, now: float) -> Limits:
        """The limits of associations and QOS, at most a minute old; not read where Slurm enforces none."""
        if not configuration.enforces_limits:
            return NO_LIMITS
        if self._limits is None or not 0 <= now - self._limits[0] < _PARTITION_MAX_AGE:
            self._limits = now, read_limits(self._commands)
        return self._limits[1]

    def _read_preempting_qos(self, configuration: SlurmctldConfiguration, now: float) -> frozenset[str] | None:
        """The QOS whose jobs may preempt others, at most a minute old, or as they were known last where slurmdbd does
        not answer; not read where Slurm does not preempt by QOS."""
        if configuration.preempts_by != "qos":
            return frozenset()
        known = self._preempting_qos
        if known is None or not 0 <= now - known[0] < _PARTITION_MAX_AGE:
            try:
                known = now, read_preempting_qos(self._commands, within=configuration.preempts_within_qos)
            except UnreachableError:
                raise
            except BackendError:
                known = now, known[1] if known else None
            self._preempting_qos = known
        return known[1]

    def _read_associations(self, now: float) -> tuple[tuple[Association, ...], tuple[str, ...]]:
        """The associations, at most a minute old, and warnings. None without accounting: all users are equal then."""
        if not self._associations:
            return (), ()
        if self._association_cache is None or not 0 <= now - self._association_cache[0] < _PARTITION_MAX_AGE:
            try:
                self._association_cache = now, parse_associations(self._commands.read("sshare", "-a", "-P")), ()
            except UnreachableError:
                raise
            except BackendError as error:
                self._association_cache = now, (), (f"the shares of users are left out: {error}",)
        return self._association_cache[1:]


def _with_reservations(nodes: Iterable[Node], active: Iterable[Reservation]) -> Iterable[Node]:
    """Adds the active reservation to each node: 22.05 does not show it, later releases show it after free text."""
    names = {node: reservation.name for reservation in active for node in reservation.nodes}
    for node in nodes:
        missing = not node.reservation and node.name in names
        yield replace(node, reservation=names[node.name]) if missing else node


@dataclass(slots=True)
class _Derived(Generic[Read]):
    """What follows from each object that the last poll read, by its address; the object is kept too, so that no other
    gets its address. Of one that has not changed it is the same object from poll to poll."""

    _known: dict[int, tuple[Read, Read]] = field(default_factory=dict)

    def of(self, read: Iterable[Read], derive: Callable[[Read], Read]) -> dict[int, Read]:
        """What follows from each of these, by its address, in order."""
        last, here = self._known, {id(one): one for one in read}  # thousands of jobs may share one
        self._known = {address: last.get(address) or (one, derive(one)) for address, one in here.items()}
        return {address: derived for address, (_, derived) in self._known.items()}


@dataclass(slots=True)
class _NarrowedForms:
    """The forms of the last poll with `narrows`."""

    _known: _Derived[RequestForm] = field(default_factory=_Derived)

    def of(self, forms: Mapping[JobId, RequestForm], snapshot: Snapshot) -> Mapping[JobId, RequestForm]:
        """The forms, those of jobs with `narrows` that may start in partitions that narrow alone."""
        partitions = {partition.name for partition in snapshot.partitions if partition.narrows}
        able = [job.id for job in snapshot.jobs if job.partitions and partitions.issuperset(job.partitions)]
        narrowed = self._known.of((forms[job] for job in able), lambda form: replace(form, narrows=True))
        return {**forms, **{job: narrowed[id(forms[job])] for job in able}}


@dataclass(slots=True)
class _CountedNodes:
    """The nodes of the last poll as Slurm counts their CPUs, which SelectTypeParameters says."""

    _parameters: Collection[str] = ()
    _known: _Derived[Node] = field(default_factory=_Derived)

    def of(self, nodes: Iterable[Node], select_parameters: Collection[str]) -> Iterable[Node]:
        """The nodes, each as `with_cpu_units` returns it."""
        if select_parameters != self._parameters:
            self._parameters, self._known = select_parameters, _Derived()
        return self._known.of(nodes, lambda node: with_cpu_units(node, select_parameters)).values()


class SlurmBackend:
    """A Slurm cluster: reads from a `PollSource`, changes by commands only.

    `clock` returns unix seconds, `user` the name of the acting user; with `associations` shares of users are read too,
    and with `narrows` starts name the placeholder where there is one. `monotonic` and `sleep` are for the second that a
    restart waits.
    """

    def __init__(
        self,
        commands: Commands,
        source: PollSource,
        clock: Callable[[], float],
        user: Callable[[], str] = effective_user,
        *,
        associations: bool = False,
        narrows: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._commands = commands
        self._source = source
        self._reader = ClusterReader(commands, source, clock, associations, narrows)
        self._user = user
        self._restarts = RestartDelays(monotonic)
        self._sleep = sleep
        self._forms: Mapping[JobId, RequestForm] = {}
        self._clock = clock
        self._identity: Identity | None = None
        self._identity_due = 0.0
        self._remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`slurm (commands)` or `slurm (pyslurm)`: how the cluster is read."""
        return f"slurm ({self._source.name})"

    @property
    def calls(self) -> CallCounts:
        """Calls since construction: a read is one query, a write one line or command that changes something."""
        return self._commands.calls

    @property
    def remarks(self) -> tuple[str, ...]:
        """How the last poll was read, one sentence each."""
        return self._remarks

    @property
    def operation_seconds(self) -> float:
        """Seconds that an operation takes at least, as slurmctld limits the rate of our requests; 0 without a limit."""
        limit = self._commands.rate_limit
        return limit.operation_seconds if limit else 0.0

    def observe(self) -> Snapshot:
        """Polls the cluster: all jobs and nodes, and what is cached where it is too old.

        Raises UnreachableError, BackendError.
        """
        configuration = self._reader.configuration()
        exempt = self._user() in ("root", configuration.slurm_user)
        self._commands.rate_limit = None if exempt else configuration.rate_limit
        poll = self._reader.poll()
        self._forms, self._remarks = poll.forms, poll.remarks
        self._restarts.see(poll.snapshot)
        return poll.snapshot

    def activity(self) -> str:
        """Counters of slurmctld's diagnostics, whose cost does not grow with the number of jobs; any user may read
        them, and no lock on jobs or nodes is taken (`_slurm_rpc_dump_stats` of Slurm 25.11)."""
        try:
            return parse_activity(self._commands.read("sdiag"))
        except BackendError:
            return ""

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        """The runs with GPUs that ended between these times, from slurmdbd. Raises BackendError."""
        return read_finished(self._commands, since, until)

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        """The script and folder of each of these jobs. Raises BackendError."""
        return read_origins(self._commands, jobs)

    def identity(self) -> Identity:
        """The acting user and its privilege. A privilege that was known stays so while nobody answers.

        Raises UnreachableError, BackendError.
        """
        known, began = self._identity, self._clock()
        if known is not None and 0 < self._identity_due - began <= _CONFIGURATION_MAX_AGE:
            return known
        configuration = self._reader.configuration()
        read = read_identity(self._commands, self._user(), configuration.slurm_user)
        now = self._clock()
        wait = _CONFIGURATION_MAX_AGE if read.may_schedule else _RIGHTS_RETRY + _RIGHTS_REST * max(now - began, 0.0)
        self._identity_due = now + min(wait, _CONFIGURATION_MAX_AGE)
        self._identity = known if known is not None and read.unread else read
        return self._identity

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """The exact commands; none if they are not safe to run."""
        try:
            return commands_for(operation, self._forms.get(operation.subject, DEFAULT_FORM)).shown
        except UnsafeCommandError:
            return ()

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Carries out the operations and reads back; see `Backend`. Raises UnreachableError, BackendError."""
        if not operations:
            return ()
        released = (op.subject for op in operations if op.verb is Verb.RELEASE and op.permitted)
        if (left := self._restarts.seconds_left(released)) > 0:
            self._sleep(left)
        executor = BatchExecutor(self._commands, self._forms)
        outcomes, self._forms = executor.execute(operations), executor.forms_now
        if any(operation.verb is Verb.CONFIGURE for operation in operations):
            self._reader.invalidate()
        return outcomes


def connect(cluster: ClusterSettings, clock: Callable[[], float] = time.time) -> Backend:
    """The backend that the settings name. Runs no command yet.

    `auto` uses pyslurm where it is installed, and commands if the first poll shows that it does not fit this Slurm.
    Raises PyslurmUnavailableError if pyslurm is required but not installed, BackendError for an unknown backend.
    """
    commands = Commands(cluster.timeout, cluster.slurm_conf)
    if cluster.backend not in ("auto", "commands", "pyslurm"):
        raise BackendError(f"no backend {cluster.backend!r}: set auto, commands or pyslurm in [cluster]")
    required, installed = cluster.backend == "pyslurm", find_spec("pyslurm") is not None
    if required and not installed:
        raise PyslurmUnavailableError(
            "pyslurm is not installed: set backend = 'commands', or install pyslurm for this Slurm"
        )
    source: PollSource = CommandSource()
    if installed and cluster.backend != "commands":
        source = PyslurmSource(clock, cluster.pyslurm_memory_max, required)
    return SlurmBackend(commands, source, clock, associations=cluster.associations, narrows=cluster.narrow)
