"""Leftovers of an order that is done: what it dropped and is still in the bucket, and why. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION_ACTIONS: Final = "s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion"
"""Permissions that brokers need to remove versions."""


class VersionsLeft(NamedTuple):
    """Old versions of dropped objects in a bucket that keeps versions: how many were removed, and how many
    are left. `why` they are; `until_ms`: the time from which a lifecycle rule takes them, None where no rule
    does; `locked`: some of those under retention, with their dates, of `locked_count` in all. `unknown`: why
    nobody knows whether there are any, empty where it is known."""

    removed: int = 0
    left: int = 0
    why: str = ""
    locked: tuple[str, ...] = ()
    locked_count: int = 0
    until_ms: int | None = None
    unknown: str = ""


class Remains(NamedTuple):
    """Leftovers of an order: the number of objects, some of their keys, and old versions. `newest_tail`: the
    greatest number of a cut that a tail among them was saved for, 0 without one."""

    objects: int
    named: tuple[str, ...]
    versions: VersionsLeft
    newest_tail: int = 0

    @property
    def is_nothing(self) -> bool:
        return not self.objects and not self.versions.left and not self.versions.unknown

    @property
    def words(self) -> str:
        """Leftovers in a sentence."""
        said = []
        if self.objects:
            said.append(f"{self.objects} dropped objects are not deleted yet, such as {self.named[0]}")
        if self.versions.left:
            said.append(f"{self.versions.left} old versions of objects are left: {self.versions.why}")
        if self.versions.unknown:
            said.append(
                f"old versions of objects may be left, the search for them failed: {self.versions.unknown}; "
                f"brokers need {VERSION_ACTIONS}"
            )
        return "; ".join(said) or "nothing is left of what it dropped"
