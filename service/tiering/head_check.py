"""What a partition's HEAD in the bucket says about our own metadata: may this node judge the partition? [P]

HEAD and the catalog's entry are written one after the other by one writer, so they agree, or HEAD is one
commit behind. Anything else is a past that came back on one side: a disk restored from a backup, a new disk
under an old cluster id, two nodes on one prefix, a bucket rolled back. Then what looks dead from here
may be what is alive, so nothing is written and nothing is deleted until somebody has decided.

>>> ours = CatalogEntry(5, "m5", 1, 0, 50, 5, 500)
>>> judge(ours, None)
<Verdict.OURS_NEWER: 'ours-newer'>
>>> judge(None, None)
<Verdict.EQUAL: 'equal'>
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import Head


class Verdict(Enum):
    """How HEAD and our committed entry stand to each other."""

    EQUAL = "equal"
    """the same manifest in the same version, or nothing on both sides: this node may judge"""
    OURS_NEWER = "ours-newer"
    """HEAD was not written yet, or was rolled back: it is to be written again before anything else"""
    HEAD_NEWER = "head-newer"
    """somebody has committed what we do not know: our metadata is of before, or lags"""
    NO_ENTRY = "no-entry"
    """there is an archive that our metadata knows nothing of"""
    FOREIGN = "foreign"
    """another manifest under our version: two writers have gone on from the same past"""
    UNREADABLE = "unreadable"
    """HEAD is damaged, and the bucket has manifests that are newer than ours"""


MAY_GO_ON: Final = frozenset({Verdict.EQUAL, Verdict.OURS_NEWER})
"""Offsets beyond our entry's were never archived by anybody: appends are safe."""


def judge(entry: CatalogEntry | None, head: Head | None) -> Verdict:
    """`entry` is the committed one; `head` is None where there is none."""
    if head is None:
        return Verdict.EQUAL if entry is None else Verdict.OURS_NEWER
    if entry is None:
        return Verdict.NO_ENTRY
    if head.version != entry.version:
        return Verdict.HEAD_NEWER if head.version > entry.version else Verdict.OURS_NEWER
    return Verdict.EQUAL if head.manifest_key == entry.manifest_key else Verdict.FOREIGN


def judge_damaged(entry: CatalogEntry | None, newest_manifest: int) -> Verdict:
    """The verdict on a HEAD that cannot be read, from the newest version among the manifests' keys (0: none).

    A manifest may be there that was never committed, so only that none is newer than ours says something.
    """
    if entry is None or newest_manifest > entry.version:
        return Verdict.UNREADABLE
    return Verdict.OURS_NEWER


def problem(verdict: Verdict, tip: TopicIdPartition, entry: CatalogEntry | None, head: Head | None) -> str:
    """What is wrong, and what to do about it, in a line for people. `tip` may lack the topic's name."""
    name = str(tip) if tip.topic else f"{tip.topic_id}/{tip.partition}"
    ours = f"version {entry.version}" if entry is not None else "no archive"
    found = f"version {head.version}" if head is not None else "nothing readable"
    what = {
        Verdict.HEAD_NEWER: "the bucket is ahead of this node's metadata",
        Verdict.NO_ENTRY: "the bucket has an archive that this node's metadata does not know",
        Verdict.FOREIGN: "somebody else has committed another manifest under the same version",
        Verdict.UNREADABLE: "HEAD is damaged and there are newer manifests (firn repair)",
    }.get(verdict, verdict.value)
    return (
        f"{name}: {what}: HEAD names {found}, the metadata {ours}; nothing of it is written or deleted "
        f"until that is settled (docs/operations.md, `firn.remote.recover`)"
    )
