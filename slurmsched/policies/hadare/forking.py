"""The job forker: numbers for the copies of a job (section V-A)."""

from __future__ import annotations

from slurmsched.policies.hadare.errors import TrackingError

__all__ = ["copies", "copy_id", "parent_of"]


def copy_id(parent: int, copy: int, most_jobs: int) -> int:
    """job_ID = max_job_count x i + parent_job_id, with i from 1 on. Raises TrackingError.

    `most_jobs` is one beyond the largest number that a parent may have.
    """
    if not 0 <= parent < most_jobs or copy < 1:
        raise TrackingError(
            f"copy {copy} of job {parent} has no number: jobs go from 0 to {most_jobs - 1}, copies from 1"
        )
    return most_jobs * copy + parent


def parent_of(number: int, most_jobs: int) -> tuple[int, int]:
    """The parent and which of its copies this is; copy 0 is the parent itself."""
    copy, parent = divmod(number, most_jobs)
    return parent, copy


def copies(parent: int, count: int, most_jobs: int) -> tuple[int, ...]:
    """The numbers of all its copies. Raises TrackingError."""
    return tuple(copy_id(parent, copy, most_jobs) for copy in range(1, count + 1))
