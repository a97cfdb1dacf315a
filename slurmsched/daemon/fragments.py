"""The configuration files that the settings ask for: what they hold now, and what they should."""

from __future__ import annotations

from pathlib import Path

from slurmsched.installation import installation
from slurmsched.model import Snapshot, SynschedError
from slurmsched.rendering import render
from slurmsched.rounds.planning import Fragment
from slurmsched.settings import Loaded, Settings

__all__ = ["FragmentError", "fragments"]


class FragmentError(SynschedError):
    """A setting of nodes.fragments that cannot be followed."""


def fragments(settings: Settings, snapshot: Snapshot) -> tuple[Fragment, ...]:
    """Each `TEMPLATE=PATH` of the settings, rendered from the nodes. Raises FragmentError, RenderingError."""
    if not settings.nodes.fragments:
        return ()
    values = installation(Loaded(settings), snapshot=snapshot)
    return tuple(_fragment(entry, values) for entry in settings.nodes.fragments)


def _fragment(entry: str, values: dict[str, object]) -> Fragment:
    template, _, path = entry.partition("=")
    return Fragment(path, _standing(Path(path)), render(template, **values))


def _standing(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FragmentError(f"cannot read {path}, which nodes.fragments names: {error}") from error
