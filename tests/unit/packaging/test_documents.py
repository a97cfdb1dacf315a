"""The pages for people are whole: links lead somewhere, settings, hints and commands are all there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmsched.cli.commands import COMMANDS
from slurmsched.experiments.figures import figure_parts, kept_figures
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.model.hints import HINT_KEYS, MARKS
from slurmsched.report.experiments import figures_page
from slurmsched.settings.file import setting_rows
from slurmsched.template_files import template_names

CHECKOUT = Path(__file__).parents[3]
WITHOUT_FIGURES = {"synergy-replay", "synergy-unknown", "site-promises", "lies", "forecasts", "mixed"}
"""Experiments that measure no published figure."""
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


def test_the_users_page_explains_every_hint_as_its_definition_does() -> None:
    page = (CHECKOUT / "docs" / "hints.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.*) \| `(.*)` \|$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page))
    assert rows == [(name, key.meaning, key.example) for name, key in HINT_KEYS.items() if name not in MARKS]


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


def test_the_page_of_figures_is_what_the_kept_rows_say() -> None:
    kept = kept_figures(CHECKOUT / "docs" / "figures")
    assert (CHECKOUT / "docs" / "figures.md").read_text(encoding="utf-8") == figures_page(kept)


def test_the_page_of_figures_has_every_experiment_and_no_quick_row_that_does_not_say_so() -> None:
    page = (CHECKOUT / "docs" / "figures.md").read_text(encoding="utf-8")
    parts, rows = (table_cells(page.partition(f"\n## {title}\n")[2]) for title in ("Experiments", "Figures"))
    assert [row["experiment"] for row in parts] == [part.name for part in figure_parts()]
    assert {name for name, entry in EXPERIMENTS.items() if not entry.parts} <= WITHOUT_FIGURES
    assert {row["paper"] for row in parts} == {"Synergy", "Tesserae", "FGD", "Gavel", "Hadar", "HadarE", "Gandiva_fair"}
    assert {row["size"] for row in parts} <= {"whole", "**QUICK**", "**NOT MEASURED YET**"}
    for part in parts:
        own = [row for row in rows if row["experiment"] == part["experiment"]]
        counts = {verdict: int(part[verdict]) for verdict in ("held", "missed", "not held", "measured")}
        assert counts == {
            verdict: sum(row["verdict"].strip("*").lower() == verdict for row in own) for verdict in counts
        }
        assert all(row["figure"].startswith("**QUICK** ") is (part["size"] == "**QUICK**") for row in own), part
    notes = {line.partition(".")[0] for line in page.splitlines() if re.match(r"\d+\. ", line)}
    for row in rows:
        told = row["published"] != "-" or row["authors' code"] != "-"
        asked = row["asked"] != "-" and not row["asked"].startswith("(")
        assert asked or row["verdict"] == ("**not held**" if told else "measured"), row
        assert row["note"] in notes or (not row["note"] and row["verdict"] != "**not held**"), row


def table_cells(text: str) -> list[dict[str, str]]:
    """The rows of a text's first table by its headings."""
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines)
    return [dict(zip(heads, row, strict=True)) for row in rows]
