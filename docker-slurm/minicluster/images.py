"""Docker images of Slurm's releases, named by the hash of their build context; built where missing."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from pathlib import Path

from .commands import ClusterError, Commands, last_line
from .engine import exclusive_lock, install_packages
from .sources import SOURCE, build_context, find_tarball, source_digest

DEBIAN = {"bookworm": "22.05", "trixie": "24.11", "sid": "26.05"}
UBUNTU = {"noble": "23.11"}
"""Built only where asked for by name."""
RELEASES = {**DEBIAN, **UBUNTU, SOURCE: "from source"}
SOURCE_BASE = "trixie"
LOW_CPU_SHARES = "16"
"""docker's --cpu-shares of a low-priority build; the default is 1,024."""
CONTEXT = Path(__file__).resolve().parent.parent / "image"
REPOSITORY = "slurmsched-cluster"
MIRROR = "http://deb.debian.org/debian"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
DEBOOTSTRAP_SCRIPT = SCRIPTS / "sid"  # all releases of Debian share it
UBUNTU_SCRIPT = SCRIPTS / "gutsy"  # all releases of Ubuntu share it; it names their mirror too
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PRINT_UBUNTU_KEYRING = (
    "{ apt-get -q update && apt-get install -yq --no-install-recommends ubuntu-keyring; } >/dev/null"
    " && base64 /usr/share/keyrings/ubuntu-archive-keyring.gpg"
)


def ensure_image(commands: Commands, release: str, tarball: str = "", *, yielding: bool = False) -> str:
    """Returns the name of a release's image, which is built if the build context has changed.

    `tarball` is Slurm's source, for the release `source`; with `yielding` the build has low CPU priority. Raises
    ClusterError.
    """
    source = find_tarball(tarball) if release == SOURCE else None
    name = f"{REPOSITORY}:{release}-{_context_hash(source)}"
    if _exists(commands, name):
        return name
    with exclusive_lock():
        _ensure_base(commands, release if source is None else SOURCE_BASE)
    share = ("--cpu-shares", LOW_CPU_SHARES) if yielding else ()
    with exclusive_lock(
        "docker" if source is None else "source"
    ):  # takes minutes; images of other releases can be built meanwhile
        if _exists(commands, name):
            return name
        if source is None:
            _build(commands, name, CONTEXT, "--build-arg", f"RELEASE={release}", *share)
        else:
            with build_context(commands, CONTEXT, source) as folder:
                _build(commands, name, folder, *share)
        _remove_superseded(commands, release, name)
    return name


def compile_checkout(commands: Commands, image: str, source: Path) -> None:
    """Leave bytecode for the image's Python in the checkout, which clusters can only read: `synsched` starts sooner."""
    owner = source.stat()
    commands.run(
        "docker", "run", "--rm", "--network=none", "--user", f"{owner.st_uid}:{owner.st_gid}",
        "--volume", f"{source}:/opt/slurmsched", "--entrypoint", "python3", image,
        "-m", "compileall", "-q", *(f"/opt/slurmsched/{folder}" for folder in ("slurmsched", "hooks", "tests/slurm")),
    )  # fmt: skip


def _context_hash(source: Path | None = None) -> str:
    digest = hashlib.sha256(b"" if source is None else source_digest(source))
    for path in sorted(CONTEXT.iterdir()):
        digest.update(f"{path.name}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _exists(commands: Commands, image: str) -> bool:
    return commands.succeeds("docker", "image", "inspect", image)


def _build(commands: Commands, name: str, context: Path, *options: str) -> None:
    commands.say(f"building {name} (about 1 minute, 10 minutes from source; only once)")
    build = ("docker", "build", "--tag", name, *options)
    result = commands.attempt(*build, str(context))
    if result.returncode:  # the host's network may reach the internet where the bridge does not
        result = commands.attempt(*build, "--network=host", str(context))
    if result.returncode:
        raise ClusterError(f"docker build of {name} failed: {last_line(result.stderr or result.stdout)}")


def _remove_superseded(commands: Commands, release: str, current: str) -> None:
    """Removes this release's older images that no container uses."""
    for name in commands.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split():
        if name.startswith(f"{REPOSITORY}:{release}-") and name != current:
            commands.attempt("docker", "rmi", name)


def _ensure_base(commands: Commands, release: str) -> None:
    """Makes the base image, a plain Debian or Ubuntu: from a registry, else by debootstrap."""
    base = f"slurmsched-base:{release}"
    if _exists(commands, base):
        return
    official = f"ubuntu:{release}" if release in UBUNTU else f"debian:{release}-slim"
    if _exists(commands, official) or commands.succeeds("docker", "pull", "-q", official, timeout=10):
        commands.run("docker", "tag", official, base)
        return
    if not (DEBOOTSTRAP_SCRIPT.exists() and KEYRING.exists()):
        install_packages(commands, "debootstrap", "debian-archive-keyring")
    commands.say(f"no registry answers: making {base} by debootstrap (about 1 minute, only once)")
    with tempfile.TemporaryDirectory(prefix=f"slurmsched-{release}-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        words = (release, str(root), MIRROR, str(DEBOOTSTRAP_SCRIPT))
        if release in UBUNTU:
            keyring = Path(folder) / "keyring.gpg"
            keyring.write_bytes(_ubuntu_keyring(commands))
            options = (f"--keyring={keyring}", "--components=main,universe")  # Slurm is in universe
            words = (*options, release, str(root), "", str(UBUNTU_SCRIPT))
        commands.run("debootstrap", "--variant=minbase", *words)
        commands.run("sh", "-c", 'tar -C "$1" -c . | docker import - "$2"', "sh", str(root), base)


def _ubuntu_keyring(commands: Commands) -> bytes:
    """The keys of Ubuntu's archive, from the package that Debian has of them since trixie."""
    _ensure_base(commands, "trixie")
    shown = commands.run(
        "docker", "run", "--rm", "--network=host", "slurmsched-base:trixie", "sh", "-c", PRINT_UBUNTU_KEYRING
    )
    return base64.b64decode(shown)
