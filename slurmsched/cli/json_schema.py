"""JSON Schemas (draft 2020-12) of what commands print with `--json`, derived from the dataclasses that are printed.

Types and keys come from the fields; what a key means from its docstring, else from `json_keys.toml`. Nothing else than
these keys is printed, and all of them always are.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click

from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.output import json_documents
from slurmsched.model.encoding import json_key
from slurmsched.model.reasons import REASON_SENTENCES, ReasonCode
from slurmsched.report.status import SCHEMA_VERSION

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MOST_LISTED: Final = 12
"""Values that the page of keys lists in a cell."""
Schema = dict[str, Any]

_PLAIN: Final[Mapping[object, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # no number where it is not finite
    NoneType: {"type": "null"},
    object: {},
    Any: {},
}


@cache
def json_commands() -> Mapping[str, tuple[str, ...]]:
    """Returns the documents of every command with `--json`, by its words, such as `trace show`."""
    found = dict[str, tuple[str, ...]]()
    for entries in COMMANDS.values():
        for name, entry in entries.items():
            found |= _documents_below(name, getattr(import_module(f"slurmsched.cli.{entry.module}"), name))
    return found


def _documents_below(path: str, command: click.Command) -> Iterator[tuple[str, tuple[str, ...]]]:
    if documents := json_documents(command):
        yield path, documents
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _documents_below(f"{path} {name}", child)


def command_schema(path: str, documents: Sequence[str]) -> Schema:
    """Returns the schema of what a command prints: one of its documents."""
    definitions = _Definitions()
    printed = [definitions.whole(*_resolve(document)) for document in documents]
    whole = printed[0] if len(printed) == 1 else {"oneOf": printed}
    return {
        "$schema": DIALECT,
        "$id": f"urn:synsched:{SCHEMA_VERSION}:{path.replace(' ', ':')}",
        **whole,
        "title": f"synsched {path} --json",
        "$defs": dict(sorted(definitions.schemas.items())),
    }


def _resolve(document: str) -> tuple[type, tuple[str, ...]]:
    """The class and the properties that a command names in its `json_option`."""
    module, _, names = document.partition(":")
    name, *properties = names.split("+")
    return getattr(import_module(f"slurmsched.{module}"), name), tuple(properties)


@dataclass(slots=True)
class _Definitions:
    """The schemas of dataclasses by name, collected while one is derived."""

    schemas: dict[str, Schema] = field(default_factory=dict)

    def whole(self, data_type: type, properties: Sequence[str]) -> Schema:
        """The schema of a whole document: its schema number, the fields of the dataclass, and these properties."""
        keys: dict[str, Schema] = {"schema": {"const": SCHEMA_VERSION, "description": "Version of this schema."}}
        keys |= self._of_fields(data_type)
        for name in properties:
            getter = getattr(data_type, name).fget
            keys[name] = self.of_type(get_type_hints(getter)["return"]) | {"description": _one_line(getter.__doc__)}
        return {"title": data_type.__name__, **_object(data_type, keys)}

    def _refer_to(self, data_type: type) -> Schema:
        name = data_type.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # a class may refer to itself
            self.schemas[name] = _object(data_type, self._of_fields(data_type))
        return {"$ref": f"#/$defs/{name}"}

    def _of_fields(self, data_type: Any) -> dict[str, Schema]:
        hints = get_type_hints(data_type)
        return {
            json_key(data_type, each.name): self.of_type(hints[each.name])
            | {"description": key_description(data_type, each.name)}
            for each in fields(data_type)
        }

    def of_type(self, form: Any) -> Schema:
        """The schema of a value of this type. Raises TypeError for a type that has none."""
        form = getattr(form, "__supertype__", form)
        origin, arguments = get_origin(form), get_args(form)
        if form in _PLAIN:
            return dict(_PLAIN[form])
        if origin in (Union, UnionType):
            return self._any_of([self.of_type(each) for each in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if isinstance(origin, type):
            return self._of_collection(origin, arguments)
        if isinstance(form, type) and issubclass(form, Enum):
            return {"enum": [each.value for each in form]}
        if isinstance(form, type) and is_dataclass(form):
            return self._refer_to(form)
        raise TypeError(f"{form} has no JSON schema")

    def _of_collection(self, origin: type, arguments: Sequence[Any]) -> Schema:
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.of_type(each) for each in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of_type(arguments[1])}
        if issubclass(origin, Sequence | Set):
            return {"type": "array", "items": self.of_type(arguments[0])}
        raise TypeError(f"{origin} has no JSON schema")

    @staticmethod
    def _any_of(choices: list[Schema]) -> Schema:
        """One schema for all: plain types are joined in a list."""
        if all(set(choice) == {"type"} for choice in choices):
            types = [kind for choice in choices for kind in _as_list(choice["type"])]
            return {"type": list(dict.fromkeys(types))}
        return {"anyOf": choices}


def _object(data_type: type, keys: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "description": _one_line(data_type.__doc__),
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }


def _as_list(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def key_description(data_type: type, name: str) -> str:
    """Returns what a field means, with its unit: its docstring, else what `json_keys.toml` says of it in this class or
    one that it extends, or of this name anywhere. Raises KeyError if nothing does."""
    for owner in data_type.__mro__[:-1]:
        if text := described_keys().get(owner.__name__, {}).get(name) or _field_docs(owner).get(name):
            return _one_line(text)
    if text := described_keys()["any"].get(name):
        return text
    raise KeyError(f"json_keys.toml does not say what {name} of {data_type.__name__} means")


@cache
def described_keys() -> Mapping[str, Mapping[str, str]]:
    """Returns what `json_keys.toml` says of keys, by class; under `any` of those that mean the same everywhere."""
    return tomllib.loads((files("slurmsched.cli") / "json_keys.toml").read_text(encoding="utf-8"))


@cache
def _field_docs(data_type: type) -> Mapping[str, str]:
    """The docstrings that follow the fields of a class."""
    node = _classes(data_type.__module__).get(data_type.__name__)
    docs = dict[str, str]()
    for statement, following in zip(node.body, node.body[1:], strict=False) if node is not None else ():
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = text
    return docs


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _one_line(text: str | None) -> str:
    """A docstring in one line, with JSON's word for what has no value."""
    return re.sub(r"\b(None|NaN)\b", "null", " ".join((text or "").split()))


@dataclass(frozen=True, slots=True)
class DescribedKey:
    """A row of the page of keys: a key of an object, or a reason code, with its form and its meaning."""

    name: str
    form: str
    meaning: str


@dataclass(frozen=True, slots=True)
class DescribedObject:
    """A section of the page of keys: a command with the objects that it prints, or an object with its keys."""

    name: str
    meaning: str
    keys: tuple[DescribedKey, ...] = ()


def described_json() -> Mapping[str, Sequence[DescribedObject]]:
    """Returns the contents of docs/json.md: `commands`, the `objects` that they print, and the `codes` of reasons."""
    commands, objects = list[DescribedObject](), dict[str, DescribedObject]()
    for path, documents in json_commands().items():
        schema, definitions = command_schema(path, documents), _Definitions()
        whole = [definitions.whole(*_resolve(document)) for document in documents]
        commands.append(DescribedObject(path, ", ".join(_link(each["title"]) for each in whole)))
        for name, each in (*((each["title"], each) for each in whole), *schema["$defs"].items()):
            keys = {key: one for key, one in each["properties"].items() if key != "schema"}
            described = (DescribedKey(key, _form(one), one["description"]) for key, one in keys.items())
            objects[name] = DescribedObject(name, each["description"], tuple(described))
    codes = tuple(DescribedKey(code.value, "", REASON_SENTENCES[code]) for code in ReasonCode)
    return {
        "commands": commands,
        "objects": [objects[name] for name in sorted(objects)],
        "codes": [DescribedObject("reason codes", "", codes)],
    }


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _form(schema: Schema) -> str:  # noqa: PLR0911 (a table of forms)
    """A schema in words, as Markdown."""
    match schema:
        case {"$ref": str(reference)}:
            return _link(reference.rpartition("/")[2])
        case {"anyOf": choices}:
            return " or ".join(_form(choice) for choice in choices)
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values) if len(values) <= _MOST_LISTED else "a code"
        case {"prefixItems": items}:
            return f"[{', '.join(_form(item) for item in items)}]"
        case {"type": "array", "items": item}:
            return f"list of {_form(item)}"
        case {"type": "object", "additionalProperties": value}:
            return f"{_form(value)} by key"
        case {"type": kinds}:
            return " or ".join(_as_list(kinds))
        case _:
            return "any"
