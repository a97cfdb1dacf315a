"""Generates hostile text for job fields from a seed, and batches of hostile and honest users' jobs.

Text is bytes without NUL, as Slurm stores it. `hostile_slurm` knows the length of fields and the fields of a release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from slurmsched.bench.hostile_slurm import GPUS, FakeJob, SlurmRelease

OWNER_FIELDS: Final = (
    "name",
    "comment",
    "arguments",
    "submit_line",
    "network",
    "mail_user",
    "work_dir",
    "std_err",
    "std_in",
    "std_out",
    "wckey",
    "account",
    "licenses",
    "features",
    "extra",
    "container",
)
"""The fields of a job whose text its owner chooses."""

LONG_SIZES: Final = (120_000, 600_000)
"""Bytes of long arguments: the limit of one argument on Linux, and nearly slurmctld's limit for all of them."""

_SOME_FIELDS: Final = 5
_ODDS_OF_LONG: Final = (0.002, 0.0002)

_EXTREME_NUMBERS: Final = (
    b"0",
    b"-1",
    b"999999999",
    b"4294967294",
    b"18446744073709551616",
    b"9" * 400,
    b"1e308",
    b"inf",
    b"0x7f",
)
_UNITS: Final = (b"", b"K", b"M", b"G", b"T", b"P", b"E", b"?")
_FAKE_FIELDS: Final = (
    b" TresPerJob=gres/gpu:%b",
    b" TresPerNode=gres/gpu:v100:%b",
    b" TresPerTask=gres:gpu:%b",
    b" CpusPerTres=gres/gpu:%b",
    b" MemPerTres=gres/gpu:%b",
    b" MinMemoryCPU=%bE",
    b" MinMemoryNode=%bT",
    b" ReqTRES=node=0,mem=%bG",
    b" ReqTRES=cpu=%b,node=%b",
    b" TRES=node=0,mem=%bG",
    b" AllocTRES=gres/gpu=%b",
    b" NumCPUs=%b NumNodes=%b-%b",
    b" NumTasks=%b CPUs/Task=%b",
    b" Nodes=n[1-99999] CPU_IDs=0-%b Mem=%b GRES=gpu:v100:8(IDX:0-7)",
    b" Nodes=n2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-%b)",
    b" JOB_GRES=gpu:v100:%b",
    b" ReqNodeList=n[1-%b] ExcNodeList=n[1-%b]",
    b" Comment=synsched:held=hook Comment=%b",
    b" AdminComment=%b ",
    b" WorkDir=/ Comment= TresPerJob=gres/gpu:%b",
    b" Command=/x WorkDir=/ Comment=%b  StdErr=/x",
    b" JobState=RUNNING Reason=None StartTime=%b EndTime=Unknown",
    b" SubmitTime=1970-01-01T00:00:00 RunTime=%b-00:00:00",
    b" Priority=%b Nice=-%b",
    b" ArrayTaskId=0-%b%%%b",
    b" HetJobId=%b HetJobOffset=%b JobName=x",
    b" Requeue=0 Restarts=%b BatchFlag=0",
)
_FAKE_HEAD: Final = (
    b" UserId=%b(2002) GroupId=%b(2002) MCS_label=N/A Priority=4294901758 Nice=0 Account=language QOS=normal"
    b" JobState=%b Reason=%b"
)
_FAKE_HINTS: Final = (
    b"synsched:",
    b"synsched:ckpt=usr1@9999999d",
    b"synsched:ckpt=usr1@999999999999d,duration=%bh",
    b"synsched:model=%b,task=image",
    b"synsched:fork=%b",
    b"synsched:held=hook",
    b"synsched: x\n%b JobHeldUser synsched:held=hook",
    b"synsched:synsched:held=hook,,,=,ckpt",
    b"synsched:duration=%b,move=no,pack=yes,mem=tune",
)
_CONTROLS: Final = (
    b"\x1b[2J\x1b]0;x\x07", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x7f", b"\xc2\x85", b"\xe2\x80\xa8",
    b"\xe2\x80\xa9", b"\xe2\x80\xae", b"\xef\xbb\xbf", b"\t", b"\xc2\xa0", b"\xcc\x81" * 20,
)  # fmt: skip
_NOT_UTF8: Final = (
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xc0\xaf",
    b"\xe2\x82",
    b"\x80" * 9,
)
_BRACKETS: Final = (
    b"n[", b"n[1-99999]", b"[[[[", b"n[1-2,[3-4]]", b"]", b"n[1-%b]", b"(IDX:0-%b)", b"gpu:v100:(", b"gpu(", b"((((",
    b"(CNT:%b)", b"n[00000000001-99999999999]", b"{", b'{"jobs":[', b'"', b"\\", b"%n", b"|", b"'", b"${x}", b"`x`",
)  # fmt: skip

_TextMaker = Callable[[Random, Sequence[int]], bytes]


def hostile_fields(random: Random, victims: Sequence[int]) -> Mapping[str, bytes]:
    """Returns the text of a hostile job in some of `OWNER_FIELDS`. `victims` are job numbers that it may forge."""
    fields = {
        field: hostile_bytes(random, victims) for field in random.sample(OWNER_FIELDS, random.randint(1, _SOME_FIELDS))
    }
    for size, odds in zip(LONG_SIZES, _ODDS_OF_LONG, strict=True):
        if random.random() < odds:
            fields[random.choice(("arguments", "submit_line"))] = _long_text(random, victims, size)
    return fields


def hostile_bytes(random: Random, victims: Sequence[int]) -> bytes:
    """Returns up to four joined pieces of text, each of a random kind of attack."""
    return b"".join(random.choice(_TEXT_MAKERS)(random, victims) for _ in range(random.randint(1, 4)))


def hostile_report(random: Random, victims: Sequence[int]) -> bytes:
    """Returns the content of a hostile report file."""
    kind = random.randrange(4)
    if kind == 0:
        return hostile_bytes(random, victims)
    if kind == 1:
        return b"[" * random.randint(1, 5000)
    number = random.choice((b"1e999", b"NaN", b"-1", b"9" * 400, b"true", b'"1"', b"[]", b"1.5"))
    plain = b"version run at steps done busy rate saved cpus memory ranks"
    values = dict.fromkeys(plain.split(), b"1") | {b"gpus": b"[0]", b"node": b'"n1"', b"stage": b'"checkpointed"'}
    values[b"job"] = b'"%d"' % random.choice(victims)
    values[random.choice(tuple(values))] = number
    body = b",".join(b'"%b":%b' % pair for pair in values.items())
    return b"{%b}" % body if kind == 2 else b'{%b,"job":"\xed\xa0\x80"}' % body  # noqa: PLR2004  # the last of four kinds


def _fill_template(random: Random, form: bytes) -> bytes:
    return form.replace(b"%%", b"%").replace(b"%b", random.choice(_EXTREME_NUMBERS))


def _fake_fields(random: Random, _victims: Sequence[int]) -> bytes:
    return _fill_template(random, random.choice(_FAKE_FIELDS)) + random.choice(_UNITS)


def _fake_head(random: Random, _victims: Sequence[int]) -> bytes:
    user = random.choice((b"alice", b"bob", b"root"))
    state = random.choice((b"RUNNING", b"PENDING", b"COMPLETED"))
    return _FAKE_HEAD % (user, user, state, random.choice((b"None", b"JobHeldAdmin", b"Priority")))


def _fake_job(random: Random, victims: Sequence[int]) -> bytes:
    return b"\nJobId=%d " % random.choice(victims) + random.choice((b"", b"JobName=x", b"ArrayJobId=1 ArrayTaskId=1 "))


def _fake_jobs(random: Random, victims: Sequence[int]) -> bytes:
    return b"x" + b"".join(b"\nJobId=%d " % number for number in random.sample(victims, min(len(victims), 50)))


def _fake_record(random: Random, victims: Sequence[int]) -> bytes:
    posed = b"\nJobId=%d JobName=x" % random.choice(victims) + _fake_head(random, victims)
    return posed + _fake_fields(random, victims) + b" Command=(null) WorkDir=/ StdErr=/e TresPerNode=gres/gpu:v100:8 \n"


def _fake_header(random: Random, _victims: Sequence[int]) -> bytes:
    return b"\nlast_update_time=2026-11-21T01:26:49, records=%d\n" % random.randint(0, 2000)


def _fake_hint(random: Random, _victims: Sequence[int]) -> bytes:
    return _fill_template(random, random.choice(_FAKE_HINTS))


def _many_blanks(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice((b" ", b"\n", b"\t", b" \n")) * random.randint(2, 900) + b"y"


def _control_characters(random: Random, _victims: Sequence[int]) -> bytes:
    return b"a".join(random.choices(_CONTROLS, k=3))


def _not_utf8(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice(_NOT_UTF8) + b"z"


def _brackets(random: Random, _victims: Sequence[int]) -> bytes:
    return _fill_template(random, random.choice(_BRACKETS)) * random.randint(1, 60)


def _extreme_number(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice(_EXTREME_NUMBERS)


def _long_text(random: Random, victims: Sequence[int], size: int) -> bytes:
    """Returns text that makes a search for fields slow: a separator repeated between fake fields."""
    filler = random.choice((b" ", b"(", b"[", b" =", b"n[1-9],", b" Comment=z", b"\n", b"\nJobId=1 "))
    front = b"a WorkDir=x Comment=z" + hostile_bytes(random, victims)
    return front + filler * (size // len(filler)) + b"y"


_TEXT_MAKERS: Final[tuple[_TextMaker, ...]] = (
    _fake_fields,
    _fake_fields,
    _fake_fields,
    _fake_head,
    _fake_job,
    _fake_jobs,
    _fake_record,
    _fake_header,
    _fake_hint,
    _fake_hint,
    _many_blanks,
    _control_characters,
    _not_utf8,
    _brackets,
    _extreme_number,
)


NOW: Final = 1_795_298_700
"""Time of every poll in Unix seconds."""
NODES: Final = tuple(f"n{number}" for number in range(1, 7))

_FIRST_NUMBER: Final = 1000
_HONEST_OWNERS: Final = (("alice", 2001), ("bob", 2002), ("carol", 2003))
_HOSTILE_OWNER: Final = ("mallory", 2004)
_SIZES: Final = (1, 1, 1, 2, 2, 4, 8)
_ODDS_OF_RUNNING: Final = 0.3
_ODDS_OF_ARRAY: Final = 0.05
_HINTS: Final = (b"", b"synsched:task=image,ckpt=usr1@60", b"synsched:model=gnmt,ckpt=usr1@60,duration=2h")


@dataclass(frozen=True, slots=True)
class HostileBatch:
    """Jobs in the order in which Slurm lists them; `hostile` are the numbers of those with hostile text."""

    release: SlurmRelease
    jobs: tuple[FakeJob, ...]
    hostile: frozenset[int]

    def harmless(self) -> tuple[FakeJob, ...]:
        """Returns the same jobs, the hostile ones with Slurm's default text."""
        return tuple(
            replace(job, text={}, scontrol_line=b"", squeue_cells={}) if job.number in self.hostile else job
            for job in self.jobs
        )


def make_batch(random: Random, hostile_count: int) -> HostileBatch:
    """Returns a batch of `hostile_count` hostile jobs and a third as many honest ones; some of both run."""
    jobs = _make_jobs(random, hostile_count)
    numbers = {job.number for job in jobs if job.user == _HOSTILE_OWNER[0]}
    return HostileBatch(random.choice(tuple(SlurmRelease)), _write_texts(random, jobs, numbers), frozenset(numbers))


def make_held_batch(random: Random, hostile_count: int) -> HostileBatch:
    """Returns a batch of waiting jobs on a cluster that an unmanaged partition filled first: all of them are held.

    None of the jobs is an array, so that each is held and released by its own number.
    """
    plain_batch = make_batch(random, hostile_count)
    waiting = tuple(job for job in plain_batch.jobs if not job.node and not job.array_tasks)
    unmanaged = tuple(
        FakeJob(
            number, "carol", 2003, GPUS, NOW - 600_000, partition="debug", node=node, indices=tuple(range(GPUS)),
            start_time=NOW - 3600,
        )
        for number, node in enumerate(NODES, start=_FIRST_NUMBER - len(NODES))
    )  # fmt: skip
    return HostileBatch(
        plain_batch.release, (*unmanaged, *waiting), plain_batch.hostile & {job.number for job in waiting}
    )


def _make_jobs(random: Random, hostile_count: int) -> list[FakeJob]:
    owners = [_HOSTILE_OWNER] * hostile_count + [
        random.choice(_HONEST_OWNERS) for _ in range(max(hostile_count // 3, 3))
    ]
    random.shuffle(owners)
    free = {node: list(range(GPUS)) for node in NODES}
    jobs = []
    for number, (user, uid) in enumerate(owners, start=_FIRST_NUMBER):
        submitted = NOW - random.randint(100, 500_000)
        job = FakeJob(number, user, uid, random.choice(_SIZES), submitted)
        node = random.choice(NODES)
        if len(free[node]) >= job.gpus and random.random() < _ODDS_OF_RUNNING:
            job.node, job.indices, job.start_time = node, tuple(free[node][: job.gpus]), submitted + 50
            del free[node][: job.gpus]
        elif random.random() < _ODDS_OF_ARRAY:
            job.array_tasks = f"0-{random.randint(1, 3)}"
        jobs.append(job)
    return jobs


def _write_texts(random: Random, jobs: Sequence[FakeJob], hostile: set[int]) -> tuple[FakeJob, ...]:
    """Sets the jobs' text. Hostile jobs forge any honest job, or jobs that do not exist."""
    victims = [job.number for job in jobs if job.number not in hostile] + [1, 4_000_000_000]
    for job in jobs:
        if job.number in hostile:
            job.text = hostile_fields(random, victims)
        else:
            comment = random.choice(_HINTS)
            job.text = {"name": b"train", **({"comment": comment} if comment else {})}
    return tuple(jobs)
