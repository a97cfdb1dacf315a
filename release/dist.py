"""What is published of one commit: sdist, wheel, locked requirements, bill of materials, and the digests of all four.

Everything comes from the commit and not from the work tree, carries the commit's time, and is the same byte for byte
whenever and wherever it is built with the same setuptools. Run by `make dist`, and by release/packages.py.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = "requirements.lock"
SUMS: Final = "SHA256SUMS"
BILL_VERSION: Final = "1.6"


def main() -> None:
    """Write the files into a folder, which is emptied first."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        check_out(source)
        distribute(source, folder, commit_time())
    print(digest(folder), end="")


def commit_time() -> int:
    """When the last commit was made, in Unix seconds."""
    return int(_output("git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"))


def distribute(source: Path, folder: Path, epoch: int) -> Path:
    """Writes everything but the digests into the folder, and returns the wheel."""
    _build(source, folder, epoch)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    _normalise(sdist, epoch)
    stem = sdist.name.removesuffix(".tar.gz")
    lock = folder / f"{stem}-requirements.txt"
    shutil.copyfile(source / LOCK, lock)
    (folder / f"{stem}.cdx.json").write_text(_bill(wheel, lock, epoch), encoding="utf-8")
    return wheel


def digest(folder: Path) -> str:
    """Writes the digests of all files in the folder beside them, and returns them."""
    sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()) if file.name != SUMS)
    (folder / SUMS).write_text(sums, encoding="ascii")
    return sums


def check_out(target: Path) -> None:
    """The files of the commit, and nothing else that lies about."""
    target.mkdir()
    archive = subprocess.run(["git", "-C", str(CHECKOUT), "archive", "HEAD"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def _build(source: Path, folder: Path, epoch: int) -> None:
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(argv, env=_environment(epoch), capture_output=True, text=True, check=False)
    if built.returncode:
        raise SystemExit(built.stdout + built.stderr)


def _normalise(sdist: Path, epoch: int) -> None:
    """The archive again, in the order of its names, without who made it and when."""
    plain = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed:
        packed.write(plain.getvalue())


def _bill(wheel: Path, lock: Path, epoch: int) -> str:
    """The bill of materials: the wheel, and every version that the lock file admits. CycloneDX, as JSON."""
    argv = [sys.executable, "-m", "cyclonedx_py", "requirements", "--sv", BILL_VERSION, "--of", "JSON"]
    bill: dict[str, Any] = json.loads(_output(*argv, "--output-reproducible", str(lock), epoch=epoch))
    for component in bill["components"]:
        del component["description"]  # the whole requirement, with hashes that stand in their own place as well
    name, version = wheel.name.split("-")[:2]
    root = f"pkg:pypi/{name}@{version}"
    bill["metadata"]["component"] = {
        "type": "application",
        "bom-ref": root,
        "name": name,
        "version": version,
        "purl": root,
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": [{"alg": "SHA-256", "content": _sha256(wheel)}],
    }
    needed = sorted(component["bom-ref"] for component in bill["components"])
    bill["dependencies"].append({"ref": root, "dependsOn": needed})
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def _environment(epoch: int | None) -> dict[str, str]:
    return os.environ | ({} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)})


def _output(*argv: str, epoch: int | None = None) -> str:
    return subprocess.run(argv, env=_environment(epoch), stdout=subprocess.PIPE, text=True, check=True).stdout


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
