"""Inside a container: runs one command after the other as `docker exec` would, told and answered in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
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
