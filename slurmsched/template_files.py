"""The files to install, as text: from the shipped templates, or a hook as it is.

A value that a template needs and nobody gave is an error, never a blank.
"""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError

from slurmsched.model import SynschedError
from slurmsched.package_data import package_data

_TEMPLATE_SUFFIX: Final = ".j2"


class RenderingError(SynschedError):
    """There is no such template, or it lacks a value; the message names it."""


def template_names() -> tuple[str, ...]:
    """All that `render` knows: templates such as `synsched.service.j2`, hooks such as `watchdog.py`."""
    files = (file for kind in ("templates", "hooks") for file in package_data(kind).iterdir())
    return tuple(
        sorted(file.name for file in files if file.is_file())
    )  # an installed hook has a compiled form beside it


def render(template: str, **values: object) -> str:
    """The text of a file to install; the name of a template may be given without `.j2`. Raises RenderingError."""
    known = template_names()
    if template in known and not template.endswith(_TEMPLATE_SUFFIX):
        return (package_data("hooks") / template).read_text(encoding="utf-8")
    name = template if template.endswith(_TEMPLATE_SUFFIX) else template + _TEMPLATE_SUFFIX
    if name not in known:
        there = ", ".join(name.removesuffix(_TEMPLATE_SUFFIX) for name in known)
        raise RenderingError(f"no template {template}: there are {there}")
    try:
        return _environment().get_template(name).render(values)
    except TemplateError as error:
        raise RenderingError(f"template {name}: {error.message or type(error).__name__}") from error


def _environment() -> Environment:
    # No escaping: what comes out is configuration and shell, not HTML; templates quote for themselves.
    return Environment(
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _source(name: str) -> str:
    return (package_data("templates") / name).read_text(encoding="utf-8")
