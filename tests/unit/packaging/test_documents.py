"""The pages for people are whole: links lead somewhere, settings, hints and commands are all there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmsched.cli.commands import COMMANDS
from slurmsched.model.hints import _HINT_KEYS
from slurmsched.settings.file import setting_rows
from slurmsched.template_files import template_names

CHECKOUT = Path(__file__).parents[3]
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "docker-slurm").glob("*.md")])
FENCED = re.compile(r"(?ms)^```.*?^```|`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The page's headings as GitHub links to them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_setting_that_a_page_names_exists() -> None:
    known = {row.name for row in setting_rows()}
    files = {name.removesuffix(".j2") for name in template_names()}
    sections = {name.partition(".")[0] for name in known}
    pattern = re.compile(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)`")
    for page in PAGES:
        assert set(pattern.findall(page.read_text(encoding="utf-8"))) <= known | files, page


def test_the_users_page_explains_every_hint() -> None:
    explained = set(re.findall(r"(?m)^\| `(\w+)` \|", (CHECKOUT / "docs" / "hints.md").read_text(encoding="utf-8")))
    assert explained == set(_HINT_KEYS) - {"held"}


def test_every_command_that_a_page_names_exists() -> None:
    commands = {name for section in COMMANDS.values() for name in section}
    for page in PAGES:
        named = set(re.findall(r"`synsched ([a-z]+)", page.read_text(encoding="utf-8")))
        assert named <= commands, page


def test_every_file_that_a_page_renders_is_shipped() -> None:
    shipped = {name.removesuffix(".j2") for name in template_names()}
    for page in PAGES:
        named = set(re.findall(r"synsched render ([\w.]+)", page.read_text(encoding="utf-8")))
        assert named <= shipped, page
