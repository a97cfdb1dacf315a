"""The configuration files of `nodes.fragments`: their current and their rendered text."""

from __future__ import annotations

from pathlib import Path

from slurmsched.installation import template_values
from slurmsched.model import Snapshot, SynschedError
from slurmsched.rounds.planner import ConfigFragment
from slurmsched.settings import LoadedSettings, Settings
from slurmsched.template_files import render


class ConfigFragmentError(SynschedError):
    """A file named in `nodes.fragments` cannot be read."""


def render_fragments(settings: Settings, snapshot: Snapshot) -> tuple[ConfigFragment, ...]:
    """Render each `TEMPLATE=PATH` of the settings from the snapshot. Raises ConfigFragmentError, RenderingError."""
    if not settings.nodes.fragments:
        return ()
    values = template_values(LoadedSettings(settings), snapshot=snapshot)
    return tuple(_render_fragment(entry, values) for entry in settings.nodes.fragments)


def _render_fragment(entry: str, values: dict[str, object]) -> ConfigFragment:
    template, _, path = entry.partition("=")
    return ConfigFragment(path, _current_text(Path(path)), render(template, **values))


def _current_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFragmentError(f"cannot read {path}, which nodes.fragments names: {error}") from error
