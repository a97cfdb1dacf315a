"""Text that an owner of jobs could write to pose as something else, made up from a seed.

Everything is bytes, as Slurm keeps it: no NUL, else anything. How long a field may be, and which fields a
release shows, is for `hostile_slurm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

__all__ = ["FIELDS", "LONG", "hostile_bytes", "hostile_fields", "hostile_report"]

FIELDS: Final = (
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
"""The fields of a job that its owner words."""

LONG: Final = (120_000, 600_000)
"""Bytes of long arguments: what one argument may have on Linux, and nearly what slurmctld takes of all."""

_SOME_FIELDS: Final = 5
_ODDS_OF_LONG: Final = (0.002, 0.0002)

_HUGE: Final = (
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
_POSED: Final = (
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
_HEAD: Final = (
    b" UserId=%b(2002) GroupId=%b(2002) MCS_label=N/A Priority=4294901758 Nice=0 Account=language QOS=normal"
    b" JobState=%b Reason=%b"
)
_HINTS: Final = (
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

_Maker = Callable[[Random, Sequence[int]], bytes]


def hostile_fields(random: Random, victims: Sequence[int]) -> Mapping[str, bytes]:
    """What one hostile job has in some of `FIELDS`. `victims` are numbers of jobs of others that it may pose as."""
    fields = {field: hostile_bytes(random, victims) for field in random.sample(FIELDS, random.randint(1, _SOME_FIELDS))}
    for size, odds in zip(LONG, _ODDS_OF_LONG, strict=True):
        if random.random() < odds:
            fields[random.choice(("arguments", "submit_line"))] = _long(random, victims, size)
    return fields


def hostile_bytes(random: Random, victims: Sequence[int]) -> bytes:
    """Up to four pieces, each of another kind of attack, one behind the other."""
    return b"".join(random.choice(_KINDS)(random, victims) for _ in range(random.randint(1, 4)))


def hostile_report(random: Random, victims: Sequence[int]) -> bytes:
    """What somebody puts where the report of one of his jobs belongs."""
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


def _filled(random: Random, form: bytes) -> bytes:
    return form.replace(b"%%", b"%").replace(b"%b", random.choice(_HUGE))


def _fields(random: Random, _victims: Sequence[int]) -> bytes:
    return _filled(random, random.choice(_POSED)) + random.choice(_UNITS)


def _head(random: Random, _victims: Sequence[int]) -> bytes:
    user = random.choice((b"alice", b"bob", b"root"))
    state = random.choice((b"RUNNING", b"PENDING", b"COMPLETED"))
    return _HEAD % (user, user, state, random.choice((b"None", b"JobHeldAdmin", b"Priority")))


def _job(random: Random, victims: Sequence[int]) -> bytes:
    return b"\nJobId=%d " % random.choice(victims) + random.choice((b"", b"JobName=x", b"ArrayJobId=1 ArrayTaskId=1 "))


def _jobs(random: Random, victims: Sequence[int]) -> bytes:
    return b"x" + b"".join(b"\nJobId=%d " % number for number in random.sample(victims, min(len(victims), 50)))


def _record(random: Random, victims: Sequence[int]) -> bytes:
    posed = b"\nJobId=%d JobName=x" % random.choice(victims) + _head(random, victims)
    return posed + _fields(random, victims) + b" Command=(null) WorkDir=/ StdErr=/e TresPerNode=gres/gpu:v100:8 \n"


def _counted(random: Random, _victims: Sequence[int]) -> bytes:
    return b"\nlast_update_time=2026-11-21T01:26:49, records=%d\n" % random.randint(0, 2000)


def _hint(random: Random, _victims: Sequence[int]) -> bytes:
    return _filled(random, random.choice(_HINTS))


def _blanks(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice((b" ", b"\n", b"\t", b" \n")) * random.randint(2, 900) + b"y"


def _controls(random: Random, _victims: Sequence[int]) -> bytes:
    return b"a".join(random.choices(_CONTROLS, k=3))


def _not_utf8(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice(_NOT_UTF8) + b"z"


def _brackets(random: Random, _victims: Sequence[int]) -> bytes:
    return _filled(random, random.choice(_BRACKETS)) * random.randint(1, 60)


def _number(random: Random, _victims: Sequence[int]) -> bytes:
    return random.choice(_HUGE)


def _long(random: Random, victims: Sequence[int], size: int) -> bytes:
    """Blanks between what poses as fields, so that whoever looks for fields looks long."""
    middle = random.choice((b" ", b"(", b"[", b" =", b"n[1-9],", b" Comment=z", b"\n", b"\nJobId=1 "))
    front = b"a WorkDir=x Comment=z" + hostile_bytes(random, victims)
    return front + middle * (size // len(middle)) + b"y"


_KINDS: Final[tuple[_Maker, ...]] = (
    _fields, _fields, _fields, _head, _job, _jobs, _record, _counted, _hint, _hint, _blanks, _controls, _not_utf8,
    _brackets, _number,
)  # fmt: skip
