"""The Backend protocol over recordings: they can be looked at and decided again, never changed."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.backends.protocol import BackendError, Calls, Identity, Privilege
from slurmsched.backends.recorded.recording import Recording
from slurmsched.model import Memory, Operation, Outcome, Result, Snapshot

__all__ = ["RecordedBackend"]


class RecordedBackend:
    """Shows the recorded snapshots in turn, one per poll. `memory` belongs to the one shown last."""

    name = "recorded"
    remarks: tuple[str, ...] = ()

    def __init__(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            raise BackendError("nothing is recorded: name at least one .round file")
        self._recordings = tuple(recordings)
        self.calls = Calls()

    @property
    def memory(self) -> Memory:
        """What was remembered when the snapshot shown last (before any: the first one) was taken."""
        return self._recordings[max(self.calls.polls, 1) - 1].memory

    def observe(self) -> Snapshot:
        """The next recorded snapshot. Raises BackendError after the last one."""
        if self.calls.polls == len(self._recordings):
            raise BackendError(f"the recording ends after {len(self._recordings)} rounds")
        self.calls.polls += 1
        return self._recordings[self.calls.polls - 1].snapshot

    def identity(self) -> Identity:
        """SlurmUser, so that a replayed plan shows all that could be done."""
        return Identity("recorded", Privilege.SLURM_USER)

    def commands(self, _operation: Operation) -> tuple[str, ...]:
        """None: no command changes a recording."""
        return ()

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Every operation is refused."""
        return tuple(
            Outcome(o, Result.REFUSED, detail="this is a recording: nothing can be changed") for o in operations
        )
