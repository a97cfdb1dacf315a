"""The configuration files that the settings ask for: what they hold now, and what they should."""

from __future__ import annotations

from pathlib import Path

from slurmsched.installation import template_values
from slurmsched.model import Snapshot, SynschedError
from slurmsched.rounds.planner import ConfigFragment
from slurmsched.settings import LoadedSettings, Settings
from slurmsched.template_files import render


class ConfigFragmentError(SynschedError):
    """A setting of nodes.fragments that cannot be followed."""


def render_fragments(settings: Settings, snapshot: Snapshot) -> tuple[ConfigFragment, ...]:
    """Each `TEMPLATE=PATH` of the settings, rendered from the nodes. Raises FragmentError, RenderingError."""
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
