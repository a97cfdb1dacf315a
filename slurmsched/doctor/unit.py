"""The installed systemd unit against the settings: a path that is set later is one the daemon may not write to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from slurmsched.doctor.finding import Finding, fine, mend
from slurmsched.installation import folders_outside
from slurmsched.settings.definition import Settings

__all__ = ["UNIT", "about_unit"]

UNIT: Final = Path("/etc/systemd/system/synsched.service")
_SETTING: Final = "ReadWritePaths="


def about_unit(settings: Settings, path: Path = UNIT) -> Iterator[Finding]:
    """Whether the unit at `path` lets the daemon write where the settings say; nothing where there is no unit."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "ProtectSystem=strict" not in text:
        yield mend("unit", f"{path} does not protect the host from the daemon", _remedy(path))
        return
    allowed = tuple(_allowed(text))
    missing = [
        folder
        for folder in folders_outside(settings)
        if not any(PurePosixPath(folder).is_relative_to(base) for base in allowed)
    ]
    if missing:
        yield mend("unit", f"{path} does not let the daemon write to {', '.join(missing)}", _remedy(path))
    else:
        yield fine("unit", f"{path} lets the daemon write to what is set")


def _allowed(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(_SETTING):
            try:
                words = shlex.split(line.removeprefix(_SETTING))
            except ValueError:  # quotes that do not end: systemd passes over the line, and so do we
                continue
            yield from (word.lstrip("-+").replace("%%", "%") for word in words)


def _remedy(path: Path) -> str:
    return f"'synsched render synsched.service > {path}', 'systemctl daemon-reload', restart it"
