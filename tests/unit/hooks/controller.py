"""A controller made of Lua alone: it loads the hook and asks it what slurmctld would."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HELD = "0"
AS_IT_WAS = "4294967294"
REFUSED, DENIED = "-1", "2002"
RELEASE = 4294967295
NO_ROOM = "the comment leaves no room for the mark of slurmsched: shorten it to 900 bytes, its hints to 240"

MARKED = {"comment": "synsched:model=x,held=hook"}
STANDS = {"job_state": 0, "restart_cnt": 0, "script": "#!/bin/sh", "tres_per_node": "gres/gpu:1", "partition": "gpu"}
HOOKED = {**STANDS, **MARKED, "priority": 0}

HARNESS = Path(__file__).with_name("slurmctld.lua")
HOOK = Path(__file__).parents[3] / "hooks" / "job_submit.lua"

LuaValue = str | int | bool | None | Mapping[str, "LuaValue"]


@dataclass
class Raw:
    """Lua source as it is."""

    source: str


@dataclass
class Slurmctld:
    """One Lua process that has loaded the hook. `settings` and `heartbeat` are the files the hook reads."""

    process: subprocess.Popen[str]
    settings: Path
    heartbeat: Path
    lines: dict[str, str] = field(default_factory=dict)

    def configure(self, **lines: str) -> None:
        self.lines |= lines
        self.settings.write_text("".join(f"{key} = {value}\n" for key, value in self.lines.items()))

    def beat(self, mode: str = "enforce", age: float = 0, more: str = "") -> None:
        """The scheduler's sign of life."""
        self.heartbeat.write_text(f"{int(time.time() - age)} {mode} 300\n{more}")

    def hints(self, comment: str) -> dict[str, str]:
        return self._ask(f"hints {comment.encode().hex()}")

    def submit(self, parts: Mapping[str, LuaValue] | None = None, **fields: LuaValue | Raw) -> dict[str, str]:
        """What a batch job on one GPU looks like after the hook, with these fields; `parts` are Slurm's partitions."""
        job = {"script": "#!/bin/sh", "tres_per_node": "gres/gpu:1", "priority": 4294967294, "partition": "gpu"}
        return self._call("slurm_job_submit", [job | fields, parts or {}, 1000])

    def submit_raw(self, source: str) -> dict[str, str]:
        """What becomes of a job description that is this Lua source."""
        return self._call("slurm_job_submit", [Raw(source), {}, 1000])

    def modify(self, standing: Mapping[str, LuaValue], uid: int = 1000, **fields: LuaValue) -> dict[str, str]:
        """What an update looks like after the hook; `standing` is the job's record, which user 1000 owns."""
        record = {"user_id": 1000, **standing}
        return self._call("slurm_job_modify", [{"priority": 4294967294, **fields}, record, {}, uid])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _call(self, name: str, arguments: list[object]) -> dict[str, str]:
        return self._ask(f"call {name} {{{', '.join(map(lua, arguments))}}}")

    def _ask(self, request: str) -> dict[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        pairs = (word.partition("=") for word in words)
        return {name: bytes.fromhex(text).decode() for name, _, text in pairs}


def lua(value: object) -> str:
    """A value as Lua source, on one line."""
    match value:
        case Raw():
            return value.source
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
        case Mapping():
            return "{" + ", ".join(f"[{lua(key)}]={lua(item)}" for key, item in value.items()) + "}"
        case _:
            return str(value)
