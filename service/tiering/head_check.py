"""Compare a partition's HEAD in the bucket with the committed catalog entry of this node. [P]

One writer writes the entry first and HEAD second, so they agree, or HEAD is one commit behind. Anything else
means that one side went back in time: a disk restored from a backup, a new disk under an old cluster id, two
nodes on one prefix, a bucket rolled back. Objects that look dead to this node may then be live, so it writes
and deletes nothing until an operator has decided.

>>> ours = CatalogEntry(5, "m5", 1, 0, 50, 5, 500)
>>> check_head(ours, None)
<HeadVerdict.OURS_NEWER: 'ours-newer'>
>>> check_head(None, None)
<HeadVerdict.EQUAL: 'equal'>
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import Head


class HeadVerdict(Enum):
    """Relation of HEAD to our committed entry."""

    EQUAL = "equal"
    """both name the same manifest in the same version, or there is neither: the objects may be judged"""
    OURS_NEWER = "ours-newer"
    """HEAD was not written yet, or was rolled back: it has to be written before anything else"""
    HEAD_NEWER = "head-newer"
    """HEAD names a commit that our metadata lacks: our metadata was rolled back, or lags"""
    NO_ENTRY = "no-entry"
    """the bucket has an archive that our metadata lacks"""
    FOREIGN = "foreign"
    """HEAD names another manifest of our version: two writers continued from one past"""
    UNREADABLE = "unreadable"
    """HEAD is damaged, and the bucket has manifests newer than ours"""


MAY_GO_ON: Final = frozenset({HeadVerdict.EQUAL, HeadVerdict.OURS_NEWER})
"""Verdicts under which no offset beyond our entry's was ever archived: appends are safe."""


def check_head(entry: CatalogEntry | None, head: Head | None) -> HeadVerdict:
    """Return the verdict on `head` (None: there is none) by the committed `entry`.

    Nothing of the partition is deleted unless it says that the entry is live (invariant T8).
    """
    if head is None:
        return HeadVerdict.EQUAL if entry is None else HeadVerdict.OURS_NEWER
    if entry is None:
        return HeadVerdict.NO_ENTRY
    if head.version != entry.version:
        return HeadVerdict.HEAD_NEWER if head.version > entry.version else HeadVerdict.OURS_NEWER
    return HeadVerdict.EQUAL if head.manifest_key == entry.manifest_key else HeadVerdict.FOREIGN


def check_damaged_head(entry: CatalogEntry | None, newest_manifest: int) -> HeadVerdict:
    """Return the verdict on a HEAD that cannot be read, by the newest version among the manifests' keys (0:
    none).

    That manifest may never have been committed, so only its absence proves anything.
    """
    if entry is None or newest_manifest > entry.version:
        return HeadVerdict.UNREADABLE
    return HeadVerdict.OURS_NEWER


def problem(
    verdict: HeadVerdict, tip: TopicIdPartition, entry: CatalogEntry | None, head: Head | None
) -> str:
    """Return one line for operators: what `verdict` means and what to do. `tip` may lack the topic's name."""
    name = str(tip) if tip.topic else f"{tip.topic_id}/{tip.partition}"
    ours = f"version {entry.version}" if entry is not None else "no archive"
    found = f"version {head.version}" if head is not None else "nothing readable"
    what = {
        HeadVerdict.HEAD_NEWER: "the bucket is ahead of this node's metadata",
        HeadVerdict.NO_ENTRY: "the bucket has an archive that this node's metadata does not know",
        HeadVerdict.FOREIGN: "another writer has committed another manifest under the same version",
        HeadVerdict.UNREADABLE: "HEAD is damaged and there are newer manifests (firn repair)",
    }.get(verdict, verdict.value)
    return (
        f"{name}: {what}: HEAD names {found}, the metadata {ours}; nothing of it is written or deleted "
        f"until that is settled (docs/operations.md, `firn.remote.recover`)"
    )
