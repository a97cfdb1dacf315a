"""Renders the files to install from the shipped templates and hooks.

A missing value is an error and never rendered as an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError, nodes, select_autoescape
from jinja2.meta import find_undeclared_variables

from slurmsched.model import SynschedError
from slurmsched.package_data import package_data

_TEMPLATE_SUFFIX: Final = ".j2"
_PAGES: Final = "html.j2"
"""What all texts are escaped in; others are configuration and shell, and quote what they need to."""
_OF_PAGES: Final = (".html.j2", ".css.j2", ".js.j2")
"""Pages and their parts: reports fill them, and nobody installs them."""


class RenderingError(SynschedError):
    """An unknown template, or one that lacks a value; the message names it."""


def template_names() -> tuple[str, ...]:
    """Returns the names of files to install: templates such as `synsched.service.j2`, hooks such as `watchdog.py`."""
    files = (file for kind in ("templates", "hooks") for file in package_data(kind).iterdir())
    return tuple(
        sorted(file.name for file in files if file.is_file() and not file.name.endswith(_OF_PAGES))
    )  # installed hooks have a __pycache__ folder beside them


def render(template: str, **values: object) -> str:
    """Returns the text of a file to install, or of a page; a template may be named without `.j2`. Raises
    RenderingError."""
    known = template_names()
    if template in known and not template.endswith(_TEMPLATE_SUFFIX):
        return (package_data("hooks") / template).read_text(encoding="utf-8")
    name = template if template.endswith(_TEMPLATE_SUFFIX) else template + _TEMPLATE_SUFFIX
    if name not in known and not (name.endswith(_OF_PAGES) and (package_data("templates") / name).is_file()):
        names = ", ".join(name.removesuffix(_TEMPLATE_SUFFIX) for name in known)
        raise RenderingError(f"there is no template '{template}': known are {names}")
    try:
        return _environment().get_template(name).render(values)
    except TemplateError as error:
        raise RenderingError(f"template {name}: {error.message or type(error).__name__}") from error


def template_values_read(template: str) -> Mapping[str, object]:
    """Returns the values that a template reads, each with its default if the template has one, and None if not; none of
    a hook, which is printed as it is. Raises RenderingError for an unknown template."""
    name = template if template.endswith(_TEMPLATE_SUFFIX) else template + _TEMPLATE_SUFFIX
    if name not in template_names():
        render(template)
        return {}
    parsed = _environment().parse(_source(name))
    defaults: dict[str, object] = {
        use.node.name: use.args[0].value
        for use in parsed.find_all(nodes.Filter)
        if use.name == "default" and isinstance(use.node, nodes.Name) and isinstance(use.args[0], nodes.Const)
    }
    return {variable: defaults.get(variable) for variable in sorted(find_undeclared_variables(parsed))}


def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        autoescape=select_autoescape((_PAGES,), default_for_string=False),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _source(name: str) -> str:
    return (package_data("templates") / name).read_text(encoding="utf-8")
