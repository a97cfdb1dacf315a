"""A connection of Ansible to a container of the mini cluster, which has no sshd: by `docker exec`, as root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: container
short_description: docker exec
description: Runs tasks in a container, as root.
options:
  remote_addr:
    description: The name of the container.
    vars:
      - name: inventory_hostname
      - name: ansible_host
"""


class Connection(ConnectionBase):
    """Each command is a `docker exec` of its own."""

    transport = "container"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        run = self._run("/bin/sh", "-c", cmd, data=in_data or b"")
        return run.returncode, run.stdout, run.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        self._run("sh", "-c", 'cat > "$1"', "sh", out_path, data=Path(in_path).read_bytes()).check_returncode()

    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        run = self._run("cat", in_path)
        run.check_returncode()
        Path(out_path).write_bytes(run.stdout)

    def close(self) -> None:
        self._connected = False

    def _run(self, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = ["docker", "exec", "--interactive", self.get_option("remote_addr"), *command]
        return subprocess.run(argv, input=data, capture_output=True, check=False)
