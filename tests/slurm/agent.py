"""Inside a container: runs one command after the other as `docker exec` would, told and answered in lines of JSON.

`synsched` is run in a child of this process, which has imported it once: of the processor time of all stories a third
was imports. Whatever else is run, the daemon and `synsched` out of scripts too, is started as anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path("/opt/slurmsched")
WRAPPER = Path("/usr/local/bin/synsched")
IMPORTED = "run", "job", "status", "plan", "submit", "control", "config"
"""The modules of `slurmsched.cli` whose commands stories run most."""


def is_ours(command: list[str]) -> bool:
    """Whether the command is the checkout's `synsched`, as the image starts it."""
    ours = SOURCE / "docker-slurm/image/synsched"
    return command[0] == "synsched" and WRAPPER.is_file() and WRAPPER.read_bytes() == ours.read_bytes()


def imported() -> Any:
    """The command, with all that its rounds need imported."""
    if str(SOURCE) not in sys.path:
        sys.path.insert(0, str(SOURCE))
        sys.dont_write_bytecode = True
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        for module in IMPORTED:
            import_module(f"slurmsched.cli.{module}")
        for path in sorted((SOURCE / "slurmsched/policies").glob("*.py")):
            import_module(f"slurmsched.policies.{path.stem}")
        del os.environ["OPENBLAS_NUM_THREADS"]
    return import_module("slurmsched.cli").main


def answer_forked(asked: dict[str, Any]) -> dict[str, Any]:
    """What `synsched` answers in a child. The child does not return: it ends as a process of its own does."""
    main, who = imported(), pwd.getpwnam(asked["user"])
    given, out, err = files = [os.memfd_create(name) for name in ("in", "out", "err")]
    os.pwrite(given, asked["stdin"].encode("latin-1"), 0)
    with warnings.catch_warnings(action="ignore"):  # numpy's threads, of which it takes care itself
        child = os.fork()
    if not child:
        os.setsid()
        os.setgroups(os.getgrouplist(who.pw_name, who.pw_gid))
        os.setgid(who.pw_gid)
        os.setuid(who.pw_uid)
        os.environ.update(HOME=who.pw_dir, PYTHONPATH=str(SOURCE), PYTHONDONTWRITEBYTECODE="1")
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        sys.argv = [str(SOURCE / "slurmsched/__main__.py"), *asked["command"][1:]]
        main(prog_name="synsched")
        sys.exit()
    ended = select.poll()
    ended.register(of_child := os.pidfd_open(child), select.POLLIN)
    late = not ended.poll(asked["timeout"] * 1000)
    if late:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    said = [os.pread(file, os.fstat(file).st_size, 0).decode("latin-1") for file in (out, err)]
    for file in (*files, of_child):
        os.close(file)
    return {"late": True} if late else {"code": code if code >= 0 else 128 - code, "out": said[0], "err": said[1]}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    if is_ours(asked["command"]):
        return answer_forked(asked)
    who = pwd.getpwnam(asked["user"])
    try:
        process = subprocess.Popen(
            asked["command"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True,
            env={**os.environ, "HOME": who.pw_dir},
            user=who.pw_uid, group=who.pw_gid, extra_groups=os.getgrouplist(who.pw_name, who.pw_gid),
        )  # fmt: skip
    except OSError as error:
        return {"code": 127, "out": "", "err": str(error)}
    try:
        out, err = process.communicate(asked["stdin"].encode("latin-1"), timeout=asked["timeout"])
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return {"late": True}
    code = process.returncode
    return {"code": code if code >= 0 else 128 - code, "out": out.decode("latin-1"), "err": err.decode("latin-1")}


for line in sys.stdin:
    sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
    sys.stdout.flush()
