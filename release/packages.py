"""Builds what sites install of one commit: a Debian package and an RPM, beside what release/dist.py publishes.

Both lay out the same files: the package, the command, the systemd unit, settings, hook and watchdog, manual pages and
completion. The Debian package uses the libraries of the distribution; the RPM brings those of requirements.lock in a
virtual environment of its own, for one release of Python. Everything comes from the commit, carries its time, and is
the same byte for byte wherever it is built with the same tools. Run by `make packages`; needs dpkg-deb and rpmbuild.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from email.utils import formatdate
from pathlib import Path
from typing import Final

from dist import LOCK, check_out, commit_time, digest, distribute

DEBIAN_NAMES: Final = {
    "cattrs": "python3-cattr",
    "click": "python3-click",
    "jinja2": "python3-jinja2",
    "numpy": "python3-numpy",
    "prometheus-client": "python3-prometheus-client",
    "rich": "python3-rich",
    "scipy": "python3-scipy",
    "sqlite-utils": "sqlite-utils",
}
"""The Debian package of each library in setup.cfg; one that is missing here ends the build."""
RPM_PYTHON: Final = "3.12"
"""The Python of the RPM: the newest that both Enterprise Linux 9 and 10 have."""
PLATFORM: Final = "x86_64-manylinux_2_28"
DEBIAN_MODULES: Final = "usr/lib/python3/dist-packages"
RPM_FOLDER: Final = "usr/lib/slurmsched"
CONFFILES: Final = ("/etc/synsched/job_submit.lua", "/etc/synsched/synsched.toml", "/etc/synsched/watchdog.py")
MAINTAINER: Final = "The maintainers of slurmsched <slurmsched@localhost.localdomain>"
LAUNCHER: Final = """\
#!{python} -I
import sys

from slurmsched.cli import main

sys.exit(main())
"""
RENDER: Final = """
import sys
from pathlib import Path
from slurmsched.installation import template_values
from slurmsched.template_files import render

values = {**template_values(command="/usr/bin/synsched"), "slurm_commands": "", "uids": ()}
for target in sys.argv[1:]:
    Path(target).write_text(render(Path(target).name, **values), encoding="utf-8")
"""
"""Renders templates with the default settings, whatever the settings of this machine are."""


def main() -> None:
    """Write all files into a folder, which is emptied first."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("deb", "rpm"), help="only this package")
    parser.add_argument("--python", default=RPM_PYTHON, help="the Python of the RPM (default: %(default)s)")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as scratch:
        build = Build(Path(scratch), folder, commit_time())
        if options.only != "rpm":
            build.debian_package()
        if options.only != "deb":
            build.rpm(options.python)
    print(digest(folder), end="")


class Build:
    """One build in a scratch folder, with the time of the commit in Unix seconds."""

    def __init__(self, scratch: Path, folder: Path, epoch: int) -> None:
        self._scratch, self._folder, self._epoch = scratch, folder, epoch
        self._source = scratch / "source"
        check_out(self._source)
        self._wheel = distribute(self._source, folder, epoch)
        with zipfile.ZipFile(self._wheel) as wheel:
            (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            self._metadata = Parser().parsestr(wheel.read(metadata).decode())
        self._version = self._metadata["Version"]

    def debian_package(self) -> None:
        """Builds slurmsched_VERSION-1_all.deb."""
        root = self._lay_out("deb", "/usr/bin/python3", DEBIAN_MODULES)
        completions = root / "usr/share/zsh/vendor-completions"
        completions.mkdir()
        (root / "usr/share/zsh/site-functions/_synsched").rename(completions / "_synsched")
        (root / "usr/share/zsh/site-functions").rmdir()
        changes = gzip.compress(self._debian_changelog().encode(), mtime=0)
        (root / "usr/share/doc/slurmsched/changelog.Debian.gz").write_bytes(changes)
        files = sorted(file for file in root.rglob("*") if file.is_file())
        control = root / "DEBIAN"
        control.mkdir()
        size = sum(file.stat().st_size for file in files)
        (control / "control").write_text(self._control(size), encoding="utf-8")
        (control / "conffiles").write_text("".join(f"{file}\n" for file in CONFFILES), encoding="ascii")
        sums = (
            f"{_md5(file)}  {file.relative_to(root)}\n"
            for file in files
            if f"/{file.relative_to(root)}" not in CONFFILES
        )
        (control / "md5sums").write_text("".join(sums), encoding="utf-8")
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(self._source / "release/deb" / script, control)
            (control / script).chmod(0o755)
        self._settle(root)
        package = self._folder / f"slurmsched_{self._version}-1_all.deb"
        self._run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(package))

    def rpm(self, python: str) -> None:
        """Builds slurmsched-VERSION-1.x86_64.rpm for this Python, such as 3.12."""
        site = f"{RPM_FOLDER}/lib/python{python}/site-packages"
        root = self._lay_out("rpm", f"/{RPM_FOLDER}/bin/python", site)
        self._install_locked(root / site, python)
        # A virtual environment is these two files; none is made here, where that Python need not be.
        (root / RPM_FOLDER / "bin").mkdir()
        (root / RPM_FOLDER / "bin/python").symlink_to(f"/usr/bin/python{python}")
        (root / RPM_FOLDER / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        self._settle(root)
        defined = {
            "_topdir": str(self._scratch / "rpmbuild"),
            "_rpmdir": str(self._folder),
            "_rpmfilename": "%{name}-%{version}-%{release}.%{arch}.rpm",
            "_buildhost": "localhost",
            "_binary_payload": "w9.zstdio",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
            "debug_package": "%{nil}",
            "__os_install_post": "%{nil}",
            "_build_id_links": "none",
            "wanted_version": self._version,
            "python": python,
            "staged": str(root),
        }
        definitions = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
        spec = self._source / "release/rpm/slurmsched.spec"
        self._run("rpmbuild", "-bb", "--quiet", "--target", "x86_64-linux", *definitions, str(spec))

    def _install_locked(self, modules: Path, python: str) -> None:
        """The libraries of the lock file, by their hashes, as they are on PyPI; without commands of their own."""
        uv = str(Path(sys.executable).with_name("uv"))
        asked = ("--python-version", python, "--python-platform", PLATFORM, "--no-deps", "--link-mode", "copy")
        hashed = ("--only-binary", ":all:", "--require-hashes", "--requirements", str(self._source / LOCK))
        self._run(uv, "pip", "install", "--quiet", "--target", str(modules), *asked, *hashed)
        shutil.rmtree(modules / "bin")
        for record in modules.glob("*.dist-info/RECORD"):
            lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = (line for line in lines if not line.startswith(("bin/", "../")))
            record.write_text("".join(kept), encoding="utf-8")
        (modules / ".lock").unlink(missing_ok=True)

    def _lay_out(self, kind: str, python: str, modules: str) -> Path:
        """The files that both packages have, below a new folder."""
        root = self._scratch / kind
        (root / modules).mkdir(parents=True)
        with zipfile.ZipFile(self._wheel) as wheel:
            wheel.extractall(root / modules)
        command = root / "usr/bin/synsched"
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(LAUNCHER.format(python=python), encoding="ascii")
        share, settings = root / "usr/share", root / "etc/synsched"
        self._python("-m", "slurmsched.cli.reference", str(share))
        for page in share.glob("man/man?/*"):
            page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
            page.unlink()
        documents, unit = share / "doc/slurmsched", root / "usr/lib/systemd/system/synsched.service"
        examples = documents / "examples"
        for folder in (settings, unit.parent, examples):
            folder.mkdir(parents=True)
        self._python("-c", RENDER, str(unit), str(examples / "synsched.cron"), str(examples / "synsched.toml"))
        shutil.copy(self._source / "release/synsched.toml", settings)
        for script in ("job_submit.lua", "watchdog.py"):
            shutil.copy(self._source / "hooks" / script, settings)
        for example in ("train.py", "forked.py"):
            shutil.copy(self._source / "examples" / example, examples)
        shutil.copytree(self._source / "docs", documents / "docs", ignore=shutil.ignore_patterns("figures"))
        for page in ("README.md", "SECURITY.md"):
            shutil.copy(self._source / page, documents)
        shutil.copy(self._source / "LICENSE", documents / "copyright")
        changes = (self._source / "CHANGELOG.md").read_bytes()
        (documents / "changelog.gz").write_bytes(gzip.compress(changes, mtime=0))
        return root

    def _control(self, size: int) -> str:
        """The control file of the Debian package; `size` is that of its files in bytes."""
        return f"""\
Package: slurmsched
Version: {self._version}-1
Architecture: all
Section: admin
Priority: optional
Maintainer: {MAINTAINER}
Installed-Size: {size // 1024}
Depends: {", ".join(self._debian_dependencies())}
Recommends: cron | cron-daemon, munge, slurm-client
Suggests: bash-completion, python3-matplotlib
Description: {self._metadata["Summary"]}
 slurmsched runs beside Slurm and decides which deep-learning jobs run where,
 with how many CPUs and how much memory. It is installed in a mode that changes
 nothing, and it does not start before it is enabled.
"""

    def _debian_changelog(self) -> str:
        """The one entry that Debian asks for."""
        return (
            f"slurmsched ({self._version}-1) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n"
            f" -- {MAINTAINER}  {formatdate(self._epoch)}\n"
        )

    def _debian_dependencies(self) -> Iterator[str]:
        """What setup.cfg requires, by the names that Debian has for it."""
        yield "adduser"
        yield f"python3 ({self._metadata['Requires-Python'].replace('>=', '>= ')})"
        for line in self._metadata.get_all("Requires-Dist", []):
            if "extra ==" not in line:
                name, least = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", line).groups()
                yield f"{DEBIAN_NAMES[name]} (>= {least})"

    def _settle(self, root: Path) -> None:
        """Gives every file its mode and the time of the commit."""
        executable = {root / "usr/bin/synsched", root / "etc/synsched/watchdog.py", *root.glob("DEBIAN/p*")}
        for path in (root, *root.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path in executable else 0o644)
            os.utime(path, (self._epoch, self._epoch), follow_symlinks=False)

    def _python(self, *words: str) -> None:
        self._run(sys.executable, *words)

    def _run(self, *argv: str) -> None:
        """Runs a program in the checkout of the commit; what it prints is shown if it fails."""
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(self._epoch), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(argv, cwd=self._source, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{argv[0]} failed:\n{run.stdout}{run.stderr}")


def _md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    main()
