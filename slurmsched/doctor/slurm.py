"""Checks of Slurm: release, nodes, GPUs, privileges, clock, and the settings in slurm.conf that rounds depend on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

from slurmsched.backends.protocol import BackendError, Identity, Privilege
from slurmsched.backends.slurm.placeholder import NARROWING_SINCE
from slurmsched.backends.slurm.rate_limit import parse_rate_limit
from slurmsched.doctor.finding import Finding, advice, ok, problem
from slurmsched.model import Snapshot, release_number
from slurmsched.model.reasons import pluralise
from slurmsched.policies.policies import pairs_jobs
from slurmsched.report.quantities import duration
from slurmsched.settings.definition import Mode, Settings

OLDEST_RELEASE, NEWEST_RELEASE = (22, 5), (26, 5)
"""Releases of Slurm that are tested."""

_MAX_NAMED: Final = 20
"""Maximum number of set-aside jobs that are named one by one."""
_SET_ASIDE: Final = "it waits until no other job does, at most a day; 'scontrol show job {job}' shows it"
_MAX_SKEW: Final = 5.0
"""Seconds by which two clocks may differ."""


def check_release(snapshot: Snapshot) -> Finding:
    """Whether synsched is tested with this release of Slurm."""
    release = release_number(snapshot.release)
    if release is None:
        return advice("Slurm", f"says it is release {snapshot.release or 'unknown'}", "see 'scontrol --version'")
    if OLDEST_RELEASE <= release <= NEWEST_RELEASE:
        return ok("Slurm", f"release {snapshot.release}, cluster {snapshot.cluster or 'without a name'}")
    tested = f"{OLDEST_RELEASE[0]}.{OLDEST_RELEASE[1]:02} to {NEWEST_RELEASE[0]}.{NEWEST_RELEASE[1]:02}"
    return advice(
        "Slurm", f"release {snapshot.release} is not tested", f"tested are {tested}: stay in mode observe at first"
    )


def check_nodes(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Whether Slurm has GPUs with types, and all jobs could be read."""
    gpus = [gpu for node in snapshot.nodes for gpu in node.gpus]
    if not gpus:
        yield problem(
            "GPUs", "no node has any", "describe them: Gres= in slurm.conf, and gres.conf ('synsched render')"
        )
        return
    types = sorted({gpu.type for gpu in gpus if gpu.type})
    nodes = sum(bool(node.gpus) for node in snapshot.nodes)
    yield ok(
        "GPUs", f"{pluralise(len(gpus), 'GPU')} on {pluralise(nodes, 'node')}: {', '.join(types) or 'without a type'}"
    )
    if any(not gpu.type for gpu in gpus):
        yield advice(
            "GPUs", "some have no type: all count as one type", "write Type= in gres.conf ('synsched render gres.conf')"
        )
    if not settings.manage.partitions and not settings.manage.qos:
        which = "only jobs with a synsched: hint are managed" if settings.manage.opt_in else "no job is managed"
        yield advice("partitions", which, "set manage.partitions or manage.qos for more")
    for oddity in snapshot.oddities:
        yield advice("Slurm", oddity, "'synsched dump' records what Slurm showed")
    for aside in snapshot.set_aside[:_MAX_NAMED]:
        of = f" of {aside.user}" if aside.user else ""
        yield advice("jobs", f"job {aside.job}{of} is set aside: {aside.reason}", _SET_ASIDE.format(job=aside.job))
    if len(snapshot.set_aside) > _MAX_NAMED:
        more = pluralise(len(snapshot.set_aside) - _MAX_NAMED, "more job")
        yield advice("jobs", f"{more} set aside", "see 'synsched status --json'")


@dataclass(frozen=True, slots=True)
class SlurmNames:
    """What there is in Slurm by the setting that names some of it; a kind that nobody told is absent, and `untold` says
    why."""

    known: Mapping[str, frozenset[str]]
    untold: str = ""


_NAMES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "manage.partitions": ("partition", ("scontrol", "-a", "-o", "show", "partition")),
    "manage.never_partitions": ("partition", ("scontrol", "-a", "-o", "show", "partition")),
    "manage.qos": ("QOS", ("sacctmgr", "-nP", "show", "qos", "format=Name")),
    "tickets.users": ("user", ("sacctmgr", "-nP", "show", "user", "format=User")),
    "tickets.accounts": ("account", ("sacctmgr", "-nP", "show", "account", "format=Account")),
}


def read_names(settings: Settings, read: Callable[..., str]) -> SlurmNames:
    """Ask Slurm for what the settings name, and for nothing else; `read` runs a command and returns its output."""
    known, untold = dict[str, frozenset[str]](), ""
    for setting, (_, command) in _NAMES.items():
        if not _named_in(settings, setting):
            continue
        try:
            words = (line.split()[0] for line in read(*command).splitlines() if line.strip())
            known[setting] = frozenset(word.removeprefix("PartitionName=") for word in words)
        except BackendError as error:
            untold = str(error)
    return SlurmNames(known, untold)


def _named_in(settings: Settings, setting: str) -> tuple[str, ...]:
    """The names that a setting has; those of tickets stand before an equals sign, accounts behind their parent."""
    section, _, key = setting.partition(".")
    entries: tuple[str, ...] = getattr(getattr(settings, section), key)
    names = (entry.partition("=")[0] for entry in entries)
    return tuple(dict.fromkeys(part for name in names for part in name.split("/")))


def unknown_names(settings: Settings, names: SlurmNames) -> Iterator[str]:
    """Partitions, QOS, users and accounts in the settings that Slurm does not have, each in a sentence."""
    for setting, (kind, _) in _NAMES.items():
        known = names.known.get(setting)
        for name in _named_in(settings, setting) if known is not None else ():
            if known and name not in known:
                near = get_close_matches(name, known, n=1)
                listed = ", ".join(sorted(known)[:_MAX_NAMED])
                meant = f"did you mean {near[0]}?" if near else f"Slurm has {listed}"
                yield f"{setting} names {name}, and there is no such {kind}: {meant}"


def check_shards(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Whether two jobs can share a GPU, if the policy pairs jobs."""
    if not pairs_jobs(settings.policy.system):
        return
    nodes = [node for node in snapshot.nodes if any(gpu.shards for gpu in node.gpus)]
    policy = f"policy {settings.policy.system} pairs jobs on halves of GPUs"
    if not nodes:
        yield problem(
            _SHARDS,
            f"{policy}, and no GPU has any",
            "add shard to GresTypes and to Gres= of the nodes, as in gres.conf",
        )
        return
    odd = [node.name for node in nodes if any(gpu.shards % 2 for gpu in node.gpus)]
    uneven = [node.name for node in nodes if len({gpu.shards for gpu in node.gpus}) > 1]
    mixed = [node.name for node in nodes if len(node.gpu_types) > 1]
    if odd:
        remedy = "make Count= of shard in gres.conf an even number for each GPU"
        yield problem(
            _SHARDS, f"{policy}, and GPUs of {_named(odd)} have an odd number: no job can ask for half", remedy
        )
    if uneven:
        remedy = (
            "with AutoDetect write one line Name=shard whose Count= is a multiple of the node's GPUs, without File="
        )
        yield advice(
            _SHARDS, f"GPUs of {_named(uneven)} have different numbers: half of one is not half of another", remedy
        )
    if mixed:
        remedy = "let jobs name the type (--gres=shard:TYPE:N), or have one GPU type on a node"
        yield advice(
            _SHARDS, f"{_named(mixed)} have several GPU types: jobs on shards without a type are left to Slurm", remedy
        )
    if not (odd or uneven or mixed):
        yield ok(_SHARDS, f"on {pluralise(len(nodes), 'node')}")


_SHARDS: Final = "shards"


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_MAX_NAMED]) + (f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else "")


_MANY_NODES: Final = 2000
"""Nodes of a partition from which a start costs slurmctld much more than one on few."""


def check_narrowing(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Whether slurmctld tests what starts in a large partition on its planned nodes alone (docs/admin.md)."""
    release, manage = release_number(snapshot.release), settings.manage
    if settings.rounds.mode is not Mode.ENFORCE or release is None or release < NARROWING_SINCE:
        return
    many = [partition for partition in snapshot.partitions if len(partition.nodes) >= _MANY_NODES]
    many = [partition for partition in many if partition.name not in manage.never_partitions]
    many = [partition for partition in many if not manage.partitions or partition.name in manage.partitions]
    without = ", ".join(partition.name for partition in many if not partition.narrows)
    if without:
        what = f"slurmctld tests each start on all nodes of {without}: 30 ms on 4,000, 80 ms on 12,500"
        yield advice(
            _TOPIC, what, "add NodeName=synsched-never State=FUTURE: see 'Thousands of nodes' in docs/admin.md"
        )
    elif many and not settings.cluster.narrow:
        what = "cluster.narrow is false: slurmctld tests each start on all nodes"
        yield advice(_TOPIC, what, "leave it out, unless the node synsched-never is about to be taken out")
    elif many:
        yield ok(_TOPIC, "starts name synsched-never: slurmctld tests them on their nodes alone")


def check_limits(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether rounds know the limits that Slurm forgets when they update a job."""
    limits = snapshot.limits
    if limits.unread:
        yield problem(
            "limits",
            f"Slurm enforces limits that cannot be read, so no job gets more than it asks for: {limits.unread}",
            "run 'scontrol show assoc_mgr' and 'sacctmgr show qos' as the daemon's user",
        )
    elif limits.enforced:
        rows = f"{pluralise(len(limits.associations), 'association')} and {len(limits.qos)} QOS"
        yield ok("limits", f"those of {rows} are kept")


def check_rights(identity: Identity, settings: Settings) -> Finding:
    """Whether our user has the privileges that the settings need."""
    needed, what = _required_privilege(settings)
    have = f"{identity.user} acts as {_ROLES[identity.privilege]}"
    if identity.unread and needed > Privilege.NONE:
        what = f"those of {identity.user} are unknown, since Slurm's accounting does not answer ({identity.unread})"
        return problem("rights", what, "start slurmdbd; until then the daemon leaves jobs to Slurm")
    if identity.privilege >= needed:
        return ok("rights", have)
    remedy = {
        Privilege.OPERATOR: f"sacctmgr modify user {identity.user} set AdminLevel=Operator",
        Privilege.ADMINISTRATOR: f"sacctmgr modify user {identity.user} set AdminLevel=Administrator",
    }.get(needed, "run as SlurmUser or root, or switch nodes.weights and nodes.fragments off")
    return problem("rights", f"{have}; {what} needs {_ROLES[needed]}", remedy)


def check_private(snapshot: Snapshot, identity: Identity) -> Iterator[Finding]:
    """Whether PrivateData hides from our user what rounds decide by, and what it hides from other users."""
    hidden = sorted(snapshot.private_data & _DECIDED_BY)
    if hidden and identity.privilege < Privilege.OPERATOR:
        what = f"PrivateData hides {', '.join(hidden)} of others from {identity.user}: rounds would not see them"
        yield problem("PrivateData", what, f"sacctmgr modify user {identity.user} set AdminLevel=Operator")
    elif snapshot.private_data:
        what = f"{', '.join(sorted(snapshot.private_data))} of others are hidden from users in 'synsched' too"
        yield ok("PrivateData", what)


_DECIDED_BY: Final = frozenset({"jobs", "nodes", "usage"})


def check_clock(ours: float, theirs: float | None) -> Finding:
    """Whether our clock agrees with slurmctld's (both unix seconds)."""
    if theirs is None:
        return advice("clock", "slurmctld's time could not be read", "see the first line of 'scontrol show config'")
    skew = abs(ours - theirs)
    if skew > _MAX_SKEW:
        return problem(
            "clock", f"differs from slurmctld's by {duration(skew)}: ages and leads are wrong", "run NTP on both hosts"
        )
    return ok("clock", "agrees with slurmctld's")


_ROLES: Final = {
    Privilege.NONE: "an ordinary user",
    Privilege.OPERATOR: "Operator",
    Privilege.ADMINISTRATOR: "Administrator",
    Privilege.SLURM_USER: "SlurmUser or root",
}


def _required_privilege(settings: Settings) -> tuple[Privilege, str]:
    if settings.rounds.mode is Mode.OBSERVE:
        return Privilege.NONE, "mode observe"
    if settings.nodes.weights or settings.nodes.fragments:
        return Privilege.SLURM_USER, "writing node weights or files"
    if settings.nodes.admin_comment:
        return Privilege.ADMINISTRATOR, "nodes.admin_comment"
    return Privilege.OPERATOR, f"mode {settings.rounds.mode.value}"


ScontrolConfig = Mapping[str, str]
"""The settings that `scontrol show config` prints, by name: `SelectType` -> `select/cons_tres`."""

_TOPIC: Final = "slurm.conf"
_AS_OF: Final = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def parse_configuration(text: str) -> tuple[ScontrolConfig, float | None]:
    """The settings in the output of `scontrol show config` under TZ=UTC, and slurmctld's time (unix seconds) in it."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    match = _AS_OF.search(text)
    as_of = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() if match else None
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}, as_of


def check_configuration(configuration: ScontrolConfig, settings: Settings) -> tuple[Finding, ...]:
    """The findings about the settings in slurm.conf, in the order of `_CONFIGURATION_CHECKS`."""
    findings = tuple(finding for check in _CONFIGURATION_CHECKS for finding in check(configuration, settings))
    return findings or (ok(_TOPIC, "has what rounds need"),)


def _select(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    kind = configuration.get("SelectType", "")
    if kind != "select/cons_tres":
        yield problem(_TOPIC, f"SelectType is {kind or 'not set'}: GPUs cannot be allocated", "set select/cons_tres")
    if "MEMORY" not in configuration.get("SelectTypeParameters", "").upper():
        yield advice(
            _TOPIC, "memory is not scheduled: rounds cannot size it", "set SelectTypeParameters=CR_Core_Memory"
        )


def _gres(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    if "gpu" not in configuration.get("GresTypes", "").split(","):
        yield problem(_TOPIC, "GresTypes has no gpu", "set GresTypes=gpu and describe the GPUs in gres.conf")


def _sharing(configuration: ScontrolConfig, settings: Settings) -> Iterator[Finding]:
    """Whether jobs that share a GPU run at once there: without MPS they take turns."""
    if not pairs_jobs(settings.policy.system):
        return
    types = configuration.get("GresTypes", "").split(",")
    if "shard" not in types:
        yield problem(_TOPIC, "GresTypes has no shard: no two jobs can share a GPU", "set GresTypes=gpu,shard")
    if "mps" in types:
        remedy = "divide GPUs into shards only; 'synsched render mps.sh' sets MPS up for these"
        yield advice(
            _TOPIC,
            "GresTypes has mps: a GPU has either that or shards, and jobs that ask for mps are not managed",
            remedy,
        )
    if not any(_has_script(configuration, name) for name in ("Prolog", "TaskProlog")):
        remedy = "'synsched render mps.sh' is a prolog that starts it; or measure the profiles' rates without MPS"
        yield advice(_TOPIC, "no prolog starts CUDA MPS: jobs that share a GPU take turns on it", remedy)


def _has_script(configuration: ScontrolConfig, name: str) -> bool:
    """Whether this script is set; newer releases number several of them (`Prolog[0]`)."""
    value = configuration.get(name) or configuration.get(f"{name}[0]", "")
    return value not in ("", "(null)")


def _hook(configuration: ScontrolConfig, settings: Settings) -> Iterator[Finding]:
    if "lua" in configuration.get("JobSubmitPlugins", "").split(","):
        return
    missing = "hooks/job_submit.lua is not in force"
    remedy = "set JobSubmitPlugins=lua and install hooks/job_submit.lua beside slurm.conf"
    if settings.rounds.mode is Mode.ENFORCE:
        yield problem(_TOPIC, f"{missing}: Slurm may start jobs before a round sees them", remedy)
    else:
        yield advice(_TOPIC, f"{missing}: users are not told about wrong hints", remedy)


def _requeue(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    if configuration.get("JobRequeue", "1") == "0":
        yield advice(
            _TOPIC,
            "JobRequeue is 0: only jobs submitted with --requeue are ever moved",
            "set JobRequeue=1 to let rounds move other jobs",
        )


def _limits(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    limit = parse_rate_limit(configuration.get("SlurmctldParameters", ""))
    if limit is not None:
        took = duration(100 * limit.operation_seconds)
        yield advice(
            _TOPIC,
            f"rl_enable lets a user send {limit.text}: 100 changes take {took}, unless synsched runs as SlurmUser",
            "raise rl_refill_rate, or keep rounds.period at 5m or longer",
        )


_EARLY_ROUND: Final = 10.0
"""Seconds within which an early round comes after a job was requeued."""
_CREDENTIAL_SECONDS: Final = 120.0
"""Slurm's default of cred_expire."""


def _option(configuration: ScontrolConfig, name: str, option: str) -> str | None:
    """The value of an option such as `requeue_delay=5` in a list of them; empty of a bare word, None where it is not
    set."""
    words = (word.partition("=") for word in configuration.get(name, "").split(","))
    return next((value for word, _, value in words if word.strip().lower() == option), None)


def _requeue_delay(configuration: ScontrolConfig, settings: Settings) -> Iterator[Finding]:
    """Whether a round comes before Slurm may start a job again that somebody, or a failed node, requeued."""
    rounds = settings.rounds
    delay, where = _option(configuration, "SchedulerParameters", "requeue_delay"), "SchedulerParameters=requeue_delay"
    if delay is None or _release(configuration) < (25, 11):  # earlier releases do not read it
        delay, where = _option(configuration, "AuthInfo", "cred_expire"), "AuthInfo=cred_expire"
    seconds = float(delay) if delay and delay.isdecimal() else _CREDENTIAL_SECONDS
    wanted = _EARLY_ROUND if rounds.early_interval else rounds.period
    if rounds.mode is Mode.ENFORCE and seconds < wanted:
        what = f"a job that others requeue may start again after {duration(seconds)}, before a round sees it"
        yield advice(_TOPIC, what, f"set {where}={round(wanted)} or more")


def _expedited(configuration: ScontrolConfig, settings: Settings) -> Iterator[Finding]:
    enabled = _option(configuration, "SlurmctldParameters", "enable_expedited_requeue") is not None
    if enabled and settings.rounds.mode is Mode.ENFORCE:
        what = "enable_expedited_requeue: jobs with --requeue=expedite that fail start again before a round sees them"
        yield advice(_TOPIC, what, "such a start may take GPUs promised to others; remove it to keep the order")


def _requeue_exit(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    statuses = configuration.get("RequeueExit", "")
    if statuses not in _UNSET:
        what = f"RequeueExit={statuses}: a job that ends so after its checkpoint signal waits again unheld"
        yield advice(_TOPIC, what, "let jobs go on after the signal, or end with another status")


def _backfill(configuration: ScontrolConfig, _: Settings) -> Iterator[Finding]:
    """Releases whose backfill puts back what was changed of a waiting job meanwhile (changelog of 24.05.0rc1)."""
    continues = _option(configuration, "SchedulerParameters", "bf_continue") is not None
    backfills = configuration.get("SchedulerType", "sched/backfill") == "sched/backfill"
    if backfills and continues and _release(configuration) < (24, 5):
        what = "with bf_continue backfill may undo a change of a waiting job's partition, which may then not be managed"
        yield advice(_TOPIC, what, "upgrade to Slurm 24.05, or remove bf_continue")


_UNSET: Final = ("", "(null)", "none", "no")


def _accounting(configuration: ScontrolConfig, settings: Settings) -> Iterator[Finding]:
    """Whether Slurm's accounting holds what is learnt from it, and for traces what hints said."""
    learning = settings.learning
    tracked = configuration.get("AccountingStorageTRES", "").lower().split(",")
    if learning.accounting and "gres/gpu" not in tracked:
        what = "AccountingStorageTRES has no gres/gpu: nothing is learnt of runs that end"
        yield problem(_TOPIC, what, "add gres/gpu, and gres/gpu:TYPE for each type; or set learning.accounting = false")
        return
    gathered = configuration.get("JobAcctGatherType", "").lower().removeprefix("jobacct_gather/") not in _UNSET
    if learning.accounting and not gathered:
        what = "JobAcctGatherType is none: what jobs use of CPUs and memory is known by CPU time alone"
        yield advice(_TOPIC, what, "set JobAcctGatherType=jobacct_gather/cgroup")
    if learning.accounting and not learning.prometheus and ("gres/gpuutil" not in tracked or not gathered):
        what = "accounting does not record how busy GPUs are (gres/gpuutil)"
        remedy = "AutoDetect in gres.conf and JobAcctGatherType record it; or use jobstats, or set learning.prometheus"
        yield advice(_TOPIC, what, remedy)
    if _option(configuration, "AccountingStoreFlags", "job_comment") is None:
        what = "comments are not kept in accounting: a trace of last month has no hints, so no models"
        yield advice(_TOPIC, what, "set AccountingStoreFlags=job_comment before you want 'synsched trace' of it")


def _release(configuration: ScontrolConfig) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", configuration.get("SLURM_VERSION", ""))[:3]) or (99,)


_CONFIGURATION_CHECKS: Final[tuple[Callable[[ScontrolConfig, Settings], Iterator[Finding]], ...]] = (
    _select,
    _gres,
    _sharing,
    _hook,
    _requeue,
    _requeue_delay,
    _expedited,
    _requeue_exit,
    _backfill,
    _accounting,
    _limits,
)
