"""The size and shape of the package. `pytest -s tests/unit/packaging/test_house.py` prints the counts."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).parents[3] / "slurmsched"
TABLE = "slurmsched.policies.policies"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def lines(module: ast.Module) -> int:
    return module.body[-1].end_lineno or 0


def overhead(module: ast.Module) -> int:
    """Lines of imports and of `__all__`."""
    statements = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node for node in module.body if isinstance(node, ast.Assign) and _is_all(node)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in (*statements, *names))


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def imported(module: ast.Module) -> Iterator[str]:
    """The package's modules that this one imports, anywhere in it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            yield from submodules or ({node.module} & modules().keys())


def reached_from(start: str) -> set[str]:
    """Modules that are imported with this one, its packages among them."""
    found, left = set[str](), [start]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [*imported(modules()[name]), *([name.rpartition(".")[0]] if "." in name else [])]
    return found


def circles() -> list[list[str]]:
    """Groups of modules that import each other (Tarjan). A package's `__init__` counts as a module."""
    index, low, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imported(modules()[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in modules():
        if name not in index:
            visit(name)
    return found


def recurring() -> list[str]:
    """Public class names that stand for more than one class."""
    names = Counter(
        node.name
        for module in modules().values()
        for node in module.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def test_there_are_about_300_modules_and_none_is_long() -> None:
    sizes = {name: lines(module) for name, module in modules().items() if module.body}
    longest = max(sizes, key=sizes.__getitem__)
    middle = median(sizes.values())
    print(f"\nmodules {len(modules())}, median {middle:g} lines, longest {sizes[longest]} ({longest})")
    assert len(modules()) <= 384
    assert sizes[longest] <= 500


def test_few_lines_are_imports_or_lists_of_names() -> None:
    total = sum(lines(module) for module in modules().values() if module.body)
    part = sum(map(overhead, modules().values())) / total
    print(f"\nlines {total}, of which imports and __all__ {part:.1%}")
    assert part <= 0.08


def test_only_packages_and_what_people_import_list_their_public_names() -> None:
    listed = [name for name, module in modules().items() if any(map(_lists_names, module.body))]
    assert [name for name in listed if not (PACKAGE.parent / name.replace(".", "/")).is_dir()] == [
        "slurmsched.jobside.forking"
    ]


def _lists_names(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and _is_all(node)


def test_a_class_name_stands_for_one_class() -> None:
    print(f"\nrecurring public class names {len(recurring())}")
    assert recurring() == []


def test_every_module_of_policies_is_reached_from_the_table() -> None:
    of_policies = {name for name in modules() if name.startswith("slurmsched.policies")}
    unreached = sorted(of_policies - reached_from(TABLE))
    print(f"\nmodules of policies {len(of_policies)}, reached by no row {len(unreached)}")
    assert unreached == []


def test_no_modules_import_each_other() -> None:
    print(f"\ncircles {len(circles())}")
    assert circles() == []
