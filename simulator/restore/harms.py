"""Harms to the small documents of a bucket: a flipped bit, a deletion, an older version put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, TOPICS_KEY
from simulator.store import Bucket, Object

NEWEST_COPY: Final = "the newest copy"
HEADS: Final = "HEADs"
DATA: Final = "data/"
DOCUMENTS: Final = (TOPICS_KEY, CLUSTER_KEY, METADATA_PREFIX)
"""Documents that describe the cluster, beside the archives of its partitions."""
Objects = dict[str, Object]
Harm = Callable[[Bucket, Random, Objects], None]
"""Damages a bucket; the last argument are its objects at an earlier time."""


def nothing(bucket: Bucket, random: Random, before: Objects) -> None:
    """Do nothing: only the disks are lost."""


def flip(*prefixes: str) -> Harm:
    """Return a harm that flips one bit of each object with these prefixes."""

    def harm(bucket: Bucket, random: Random, before: Objects) -> None:
        for key in _keys(bucket.objects, prefixes):
            data = bytearray(bucket.objects[key].data)
            bit = random.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            bucket.objects[key] = bucket.objects[key]._replace(data=bytes(data))

    return harm


def gone(*prefixes: str) -> Harm:
    """Return a harm that deletes the objects with these prefixes."""

    def harm(bucket: Bucket, random: Random, before: Objects) -> None:
        for key in _keys(bucket.objects, prefixes):
            del bucket.objects[key]

    return harm


def old(*prefixes: str) -> Harm:
    """Return a harm that puts back the objects with these prefixes as they were before, with their times."""

    def harm(bucket: Bucket, random: Random, before: Objects) -> None:
        for key in _keys(bucket.objects, prefixes):
            if key in before:
                bucket.objects[key] = before[key]

    return harm


def put_back(*prefixes: str) -> Harm:
    """Return a harm that writes the objects with these prefixes again as they were before, as newest."""

    def harm(bucket: Bucket, random: Random, before: Objects) -> None:
        now_ms = max((one.modified_ms for one in bucket.objects.values()), default=0) + 1_000
        for key in _keys(before, prefixes):
            bucket.objects[key] = before[key]._replace(tag=f"{before[key].tag} again", modified_ms=now_ms)

    return harm


def both(first: Harm, second: Harm) -> Harm:
    """Return a harm that does one after the other."""

    def harm(bucket: Bucket, random: Random, before: Objects) -> None:
        first(bucket, random, before)
        second(bucket, random, before)

    return harm


def _keys(objects: Objects, prefixes: Sequence[str]) -> list[str]:
    if NEWEST_COPY in prefixes:
        copies = [key for key in objects if key.startswith(METADATA_PREFIX)]
        return sorted(copies, key=lambda key: (objects[key].modified_ms, key))[-1:]
    return [key for key in sorted(objects) if key.startswith(tuple(prefixes)) or _is_head(key, prefixes)]


def _is_head(key: str, prefixes: Sequence[str]) -> bool:
    return HEADS in prefixes and key.endswith("/HEAD")
