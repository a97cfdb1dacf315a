"""Applies PrivateData of slurm.conf to the published documents for one reader.

PrivateData lists what ordinary users cannot see of other users: `jobs` (and their events), `usage` (what users
consumed), `users` and `accounts`, `nodes`. The same is hidden here: rows of other users' jobs are left out, and in
texts about the reader's own jobs the ids and owners of other jobs are replaced. Whose GPUs are idle is hidden always,
and what was learnt of others' jobs: rates, ends in forecasts, and speeds that earlier runs or reports tell.
Operators see everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from slurmsched.store.publication import (
    OTHERS_IDLE,
    OTHERS_LEARNT,
    Document,
    DocumentKind,
    DocumentRow,
    PublishedContents,
    Tables,
)
from slurmsched.store.rows import NOT_TOLD

HIDEABLE: Final = frozenset({"jobs", "usage", "users", "accounts", "nodes"})
"""The values of PrivateData that apply to the documents; others (`cloud`, `reservations`) concern nothing in them."""

_ANOTHER_JOB: Final = "another job"
_ANOTHER_USER: Final = "another user"
_JOBS: Final = re.compile(r"\b[Jj]obs? ([0-9][0-9_]*(?:, ?[0-9][0-9_]*)*)(?: of ([^\s,:;()]+))?")
_NUMBERS: Final = re.compile(r"(?<![\w.:/-])[0-9]+(?:_[0-9]+)?(?![\w.:/-]|\s*(?:GPU|CPU))")
_NAMES: Final = re.compile(r"(?<![\w.-])[A-Za-z_][\w.-]*")
_CODES: Final = frozenset({"code", "verb", "subject", "job"})
"""Keys of JSON values that are not redacted: codes, and the job that the row is about."""
_LEARNT_SPEED: Final = re.compile(r'"speed": ?"[^"]*\([^"]*\b(?:measured|reported|accounting)\b')
"""A speed, in the explanation of a job, whose source is no published table."""
_BID: Final = re.compile(r"it bids [^;\"]*; it has [^\";]* to go, with [^\";]* it would be next")
_OUTBID: Final = "others bid more"
"""A bid, and what a job is told to have to go, follow from how long its owner's runs take."""
_JOB_COLUMNS: Final = {"rates": "job", "start_forecasts": "job", "jobs": "id"}
"""In which tables there is something that was learnt of jobs, and the column of the job."""
_HIDDEN_ERROR: Final = "it failed; the daemon's log says why"
OF_PEOPLE: Final = frozenset({"jobs", "usage", "users", "accounts"})
"""The values that hide something of people."""


@dataclass(frozen=True)
class Visibility:
    """What `viewer` may see with the values `hidden` of PrivateData; the viewer None is the public, without jobs."""

    contents: PublishedContents
    hidden: frozenset[str]
    viewer: str | None = None
    everything: bool = False
    """Whether the viewer may see everything, also what is told to nobody else than its owner."""

    def document(self, kind: DocumentKind) -> Document:
        """The document of this kind, as far as the viewer may see it."""
        tables, hidden = self.contents.tables[kind], self.hidden
        if not self.everything and (idle := tables.get("idle_gpus")):
            own = [row for row in idle if self.viewer is not None and row["owner"] == self.viewer]
            tables = {**tables, "idle_gpus": own}
            hidden |= {OTHERS_IDLE} if len(own) < len(idle) else frozenset()
        if not self.everything:
            shown = self._without_learnt(tables)
            hidden |= {OTHERS_LEARNT} if shown != tables else frozenset()
            tables = shown
        if self.hidden:
            tables = {
                table: [kept for row in rows if (kept := self._row(table, row)) is not None]
                for table, rows in tables.items()
            }
        return Document(self.contents.at, tables, hidden)

    def _without_learnt(self, tables: Tables) -> Tables:
        """The tables without what runs or reports of others tell of their jobs."""
        ends = {f"end_{which}": NOT_TOLD for which in ("low", "median", "high")}
        rules: Mapping[str, Callable[[DocumentRow], DocumentRow | None]] = {
            "rates": lambda _: None,
            "start_forecasts": lambda row: {**row, **ends},
            "jobs": self._without_learnt_of_job,
        }
        return {
            table: [kept for row in rows if (kept := row if self._is_own(row[key]) else rules[table](row)) is not None]
            if (key := _JOB_COLUMNS.get(table))
            else rows
            for table, rows in tables.items()
        }

    def _without_learnt_of_job(self, row: DocumentRow) -> DocumentRow:
        texts = {name: row[name] for name in ("sentence", "reason") if isinstance(row.get(name), str)}
        row = {**row, **{name: _BID.sub(_OUTBID, text) for name, text in texts.items()}}
        if row["id"] not in self._learnt_speeds:
            return row
        kept = {**row, "target": _without_key(row["target"], "speed")} if row["target"] is not None else {**row}
        reason = _parse_json(row.get("reason"))
        if isinstance(reason, dict) and isinstance(facts := reason.get("facts"), dict):
            facts.pop("speed", None)
            kept["reason"] = json.dumps(reason)
        return kept

    @cached_property
    def _learnt_speeds(self) -> frozenset[object]:
        """The jobs whose speed is known by runs or reports of their owners, as their explanations say."""
        rows = self.contents.tables[DocumentKind.HISTORY]["jobs"]
        return frozenset(row["id"] for row in rows if _LEARNT_SPEED.search(str(row.get("reason") or "")))

    @property
    def _jobs_hidden(self) -> bool:
        return "jobs" in self.hidden

    @cached_property
    def _others(self) -> frozenset[str]:
        return frozenset(job for job, owner in self.contents.owners.items() if owner != self.viewer)

    @cached_property
    def _other_people(self) -> frozenset[str]:
        return frozenset(self.contents.owners.values()) - {self.viewer}

    def _row(self, table: str, row: DocumentRow) -> DocumentRow | None:
        rules: Mapping[str, Callable[[DocumentRow], DocumentRow | None]] = {
            "rounds": self._round,
            "jobs": self._job,
            "set_aside": self._set_aside,
            "policy_state": self._ticket_state,
            "events": self._event,
            "operations": self._operation,
            "service": self._service,
            "rates": self._rate,
            "start_forecasts": self._rate,
        }
        if table not in rules:
            return row  # switches are public
        try:
            return rules[table](row)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # a damaged row is shown only to readers who may see everything

    def _is_own(self, job: object) -> bool:
        return self.viewer is not None and self.contents.owners.get(str(job)) == self.viewer

    def _job(self, row: DocumentRow) -> DocumentRow | None:
        is_own = self.viewer is not None and row["owner"] == self.viewer
        if not is_own and self._jobs_hidden:
            return None
        kept = dict(row)
        if not is_own:
            if "accounts" in self.hidden:
                kept["summary"] = _without_key(kept["summary"], "account")
            if "usage" in self.hidden:  # reasons reveal usage, because orders depend on it
                kept |= {"rank_key": "", "sentence": "", "reason": None}
        if not self._jobs_hidden:
            return kept
        if "reason" in kept and _parse_json(kept["reason"]) is None:
            kept["reason"] = None
        return self._redact(kept, "rank_key", "sentence", json_columns=("reason",))

    def _set_aside(self, row: DocumentRow) -> DocumentRow | None:
        is_own = self.viewer is not None and row["owner"] == self.viewer
        return row if is_own or not self._jobs_hidden else None

    def _event(self, row: DocumentRow) -> DocumentRow | None:
        if not self._jobs_hidden:
            visible = "usage" not in self.hidden or self._is_own(row["job"])
            return row if visible else {**row, "sentence": row["kind"]}
        return self._redact(dict(row), "sentence") if self._is_own(row["job"]) else None

    def _operation(self, row: DocumentRow) -> DocumentRow | None:
        if not self._is_own(row["subject"]):
            return None if self.hidden & {"jobs", "usage"} else row
        if not self._jobs_hidden:
            return row
        return self._redact(dict(row), "sentence", "detail", json_columns=("reason", "commands", "undo"))

    def _service(self, row: DocumentRow) -> DocumentRow | None:
        return row if self._is_own(row["job"]) or not self.hidden & {"jobs", "usage"} else None

    def _rate(self, row: DocumentRow) -> DocumentRow | None:
        return row if self._is_own(row["job"]) or not self._jobs_hidden else None

    def _round(self, row: DocumentRow) -> DocumentRow:
        kept = dict(row)
        if self._jobs_hidden and kept["error"]:
            kept["error"] = _HIDDEN_ERROR
        if kept["overview"] is not None and self.hidden & {"jobs", "nodes"}:
            kept["overview"] = self._overview(kept["overview"])
        return kept

    def _overview(self, text: str) -> str | None:
        overview = _parse_json(text)
        if not isinstance(overview, dict):
            return None
        nodes = overview.get("nodes")
        if "nodes" in self.hidden or not isinstance(nodes, list):
            overview["nodes"] = []
        if self._jobs_hidden:
            overview["oddities"] = []
            for node in overview["nodes"]:
                for gpu in node["gpus"]:
                    gpu["jobs"] = [job for job in gpu["jobs"] if self._is_own(job)]
        return json.dumps(overview)

    def _ticket_state(self, row: DocumentRow) -> DocumentRow | None:
        """The state for `status --shares`, with only the viewer's account and trades."""
        if not self.hidden & OF_PEOPLE:
            return row
        state = _parse_json(row["state"])
        if not isinstance(state, dict):
            return None
        users, trades = state.get("users"), state.get("trades")
        state["users"] = {user: account for user, account in users.items() if user == self.viewer} if users else {}
        state["trades"] = [self._redacted_trade(trade) for trade in trades or () if self._is_own_trade(trade)]
        return {**row, "state": json.dumps(state)}

    def _is_own_trade(self, trade: Mapping[str, object]) -> bool:
        return self.viewer is not None and self.viewer in (trade.get("seller"), trade.get("buyer"))

    def _redacted_trade(self, trade: Mapping[str, object]) -> Mapping[str, object]:
        sides = {side: trade[side] if trade[side] == self.viewer else _ANOTHER_USER for side in ("seller", "buyer")}
        return {**trade, **sides}

    def _redact(self, row: dict[str, Any], *texts: str, json_columns: tuple[str, ...] = ()) -> DocumentRow:
        """The row with other users' jobs replaced in the columns `texts` and `json_columns`. Raises ValueError."""
        for column in texts:
            row[column] = self._redacted_text(row[column] or "")
        for column in filter(row.__contains__, json_columns):
            value = _parse_json(row[column])
            if value is None and row[column] is not None:
                raise ValueError(column)
            if isinstance(value, dict) and isinstance(ahead := value.get("ordered_behind"), list):
                value["ordered_behind"] = [line for line in ahead if self._redacted_text(str(line)) == line]
            row[column] = None if value is None else json.dumps(self._redacted_value(value))
        return row

    def _redacted_value(self, value: Any) -> Any:
        match value:
            case str():
                return self._redacted_text(value)
            case list():
                return [self._redacted_value(item) for item in value]
            case dict():
                return {key: item if key in _CODES else self._redacted_value(item) for key, item in value.items()}
            case _:
                return value

    def _redacted_text(self, text: str) -> str:
        text = _JOBS.sub(self._redacted_jobs, text)
        text = _NUMBERS.sub(lambda match: _ANOTHER_JOB if match[0] in self._others else match[0], text)
        return _NAMES.sub(lambda match: _ANOTHER_USER if match[0].rstrip(".") in self._other_people else match[0], text)

    def _redacted_jobs(self, match: re.Match[str]) -> str:
        all_own = all(self._is_own(job) for job in re.split(", ?", match[1]))
        return match[0] if all_own else _ANOTHER_JOB


def _without_key(text: str, key: str) -> str:
    values = _parse_json(text)
    kept = {name: value for name, value in values.items() if name != key} if isinstance(values, dict) else {}
    return json.dumps(kept)


def _parse_json(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
