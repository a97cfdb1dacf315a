"""What PrivateData of slurm.conf leaves of the published documents for one reader.

Slurm says for each kind of thing whether ordinary users see that of others: `jobs` (and what was done to them), `usage`
(what users had), `users` and `accounts` (who there is and who belongs where), `nodes`. What is hidden there is hidden
here: a row of somebody else's job is left out, and in the texts about a reader's own jobs the numbers and owners of
other jobs are replaced. Operators, and whoever they are for Slurm, see everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from slurmsched.store.export import Contents, Document, Part, Row

__all__ = ["HIDEABLE", "Visibility"]

HIDEABLE: Final = frozenset({"jobs", "usage", "users", "accounts", "nodes"})
"""The words of PrivateData that the documents follow; others (`cloud`, `reservations`) are about nothing in them."""

_ANOTHER: Final = "another job"
_SOMEBODY: Final = "another user"
_JOBS: Final = re.compile(r"\b[Jj]obs? ([0-9][0-9_]*(?:, ?[0-9][0-9_]*)*)(?: of ([^\s,:;()]+))?")
_NUMBERS: Final = re.compile(r"(?<![\w.:/-])[0-9]+(?:_[0-9]+)?(?![\w.:/-]|\s*(?:GPU|CPU))")
_NAMES: Final = re.compile(r"(?<![\w.-])[A-Za-z_][\w.-]*")
_CODES: Final = frozenset({"code", "verb", "subject", "job"})
"""What in stored values is no text: codes, and the job that the row is about."""
_FAILED: Final = "it failed; the log of the daemon says why"
_OF_PEOPLE: Final = frozenset({"jobs", "usage", "users", "accounts"})


@dataclass(frozen=True)
class Visibility:
    """What `viewer` may see where `hidden` are PrivateData's words; None is everybody, who has no jobs."""

    contents: Contents
    hidden: frozenset[str]
    viewer: str | None = None

    def document(self, part: Part) -> Document:
        """The part of the documents that is left."""
        tables = self.contents.tables[part]
        if self.hidden:
            tables = {
                table: [kept for row in rows if (kept := self._row(table, row)) is not None]
                for table, rows in tables.items()
            }
        return Document(self.contents.at, tables, self.hidden)

    @property
    def _jobs_hidden(self) -> bool:
        return "jobs" in self.hidden

    @cached_property
    def _others(self) -> frozenset[str]:
        return frozenset(job for job, owner in self.contents.owners.items() if owner != self.viewer)

    @cached_property
    def _other_people(self) -> frozenset[str]:
        return frozenset(self.contents.owners.values()) - {self.viewer}

    def _row(self, table: str, row: Row) -> Row | None:
        rules: Mapping[str, Callable[[Row], Row | None]] = {
            "rounds": self._round,
            "jobs": self._job,
            "set_aside": self._aside,
            "policy_state": self._shares,
            "events": self._event,
            "operations": self._operation,
            "service": self._service,
            "rates": self._rate,
        }
        if table not in rules:
            return row  # who paused is for everybody
        try:
            return rules[table](row)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # a damaged row is shown to nobody who may not see all

    def _is_own(self, job: object) -> bool:
        return self.viewer is not None and self.contents.owners.get(str(job)) == self.viewer

    def _job(self, row: Row) -> Row | None:
        own = self.viewer is not None and row["owner"] == self.viewer
        if not own and self._jobs_hidden:
            return None
        kept = dict(row)
        if not own:
            if "accounts" in self.hidden:
                kept["summary"] = _without(kept["summary"], "account")
            if "usage" in self.hidden:  # reasons tell what somebody had, as orders go by it
                kept |= {"rank_key": "", "sentence": "", "reason": None}
        if not self._jobs_hidden:
            return kept
        if "reason" in kept and _loaded(kept["reason"]) is None:
            kept["reason"] = None
        return self._worded(kept, "rank_key", "sentence", told=("reason",))

    def _aside(self, row: Row) -> Row | None:
        own = self.viewer is not None and row["owner"] == self.viewer
        return row if own or not self._jobs_hidden else None

    def _event(self, row: Row) -> Row | None:
        if not self._jobs_hidden:
            told = "usage" not in self.hidden or self._is_own(row["job"])
            return row if told else {**row, "sentence": row["kind"]}
        return self._worded(dict(row), "sentence") if self._is_own(row["job"]) else None

    def _operation(self, row: Row) -> Row | None:
        if not self._is_own(row["subject"]):
            return None if self.hidden & {"jobs", "usage"} else row
        if not self._jobs_hidden:
            return row
        return self._worded(dict(row), "sentence", "detail", told=("reason", "commands", "undo"))

    def _service(self, row: Row) -> Row | None:
        return row if self._is_own(row["job"]) or not self.hidden & {"jobs", "usage"} else None

    def _rate(self, row: Row) -> Row | None:
        return row if self._is_own(row["job"]) or not self._jobs_hidden else None

    def _round(self, row: Row) -> Row:
        kept = dict(row)
        if self._jobs_hidden and kept["error"]:
            kept["error"] = _FAILED
        if kept["overview"] is not None and self.hidden & {"jobs", "nodes"}:
            kept["overview"] = self._overview(kept["overview"])
        return kept

    def _overview(self, text: str) -> str | None:
        told = _loaded(text)
        if not isinstance(told, dict):
            return None
        nodes = told.get("nodes")
        if "nodes" in self.hidden or not isinstance(nodes, list):
            told["nodes"] = []
        if self._jobs_hidden:
            told["oddities"] = []
            for node in told["nodes"]:
                for gpu in node["gpus"]:
                    gpu["jobs"] = [job for job in gpu["jobs"] if self._is_own(job)]
        return json.dumps(told)

    def _shares(self, row: Row) -> Row | None:
        """`status --shares`: of others neither what they had nor what they traded."""
        if not self.hidden & _OF_PEOPLE:
            return row
        told = _loaded(row["state"])
        if not isinstance(told, dict):
            return None
        users, trades = told.get("users"), told.get("trades")
        told["users"] = {user: had for user, had in users.items() if user == self.viewer} if users else {}
        told["trades"] = [self._trade(trade) for trade in trades or () if self._trades(trade)]
        return {**row, "state": json.dumps(told)}

    def _trades(self, trade: Mapping[str, object]) -> bool:
        return self.viewer is not None and self.viewer in (trade.get("seller"), trade.get("buyer"))

    def _trade(self, trade: Mapping[str, object]) -> Mapping[str, object]:
        sides = {side: trade[side] if trade[side] == self.viewer else _SOMEBODY for side in ("seller", "buyer")}
        return {**trade, **sides}

    def _worded(self, row: dict[str, Any], *texts: str, told: tuple[str, ...] = ()) -> Row:
        """The row with other people's jobs replaced in its texts, and in its JSON ones (`told`)."""
        for column in texts:
            row[column] = self._text(row[column] or "")
        for column in filter(row.__contains__, told):
            said = _loaded(row[column])
            if said is None and row[column] is not None:
                raise ValueError(column)
            if isinstance(said, dict) and isinstance(behind := said.get("ordered_behind"), list):
                said["ordered_behind"] = [one for one in behind if self._text(str(one)) == one]
            row[column] = None if said is None else json.dumps(self._value(said))
        return row

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self._text(value)
            case list():
                return [self._value(one) for one in value]
            case dict():
                return {key: one if key in _CODES else self._value(one) for key, one in value.items()}
            case _:
                return value

    def _text(self, text: str) -> str:
        text = _JOBS.sub(self._jobs, text)
        text = _NUMBERS.sub(lambda match: _ANOTHER if match[0] in self._others else match[0], text)
        return _NAMES.sub(lambda match: _SOMEBODY if match[0].rstrip(".") in self._other_people else match[0], text)

    def _jobs(self, match: re.Match[str]) -> str:
        own = all(self._is_own(job) for job in re.split(", ?", match[1]))
        return match[0] if own else _ANOTHER


def _without(text: str, key: str) -> str:
    told = _loaded(text)
    return json.dumps({name: value for name, value in told.items() if name != key} if isinstance(told, dict) else {})


def _loaded(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
