"""Looks at a manifest's bytes for the little that a restore needs, where its checksum proves them. [P]

Parsing all rows takes as long as the archive is large. Where HEAD and the catalog name a manifest with these
bytes, its rows are those that its writer verified; the newest one, and the keys, are found without parsing
the others. What is not as today's software writes it gives None: then the manifest is parsed.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.documents import unpack
from service.remote.format.manifest_codec import MANIFEST_FORMAT, Head

_HEAD: Final = re.compile(rb'\{"format":"firn-manifest","format_version":2,')
_ROW: Final = b'{"base_offset":'
_PAGES: Final = b'"pages":['
_SEGMENTS: Final = b'],"segments":['
_KEY: Final = re.compile(rb'"key":"(data/[0-9a-f/-]+\.seg)"')


class GlancedRows(NamedTuple):
    """Rows of a manifest's segments as JSON; `has_pages`: others are in pages."""

    segments: bytes
    has_pages: bool


def rows_of(data: bytes, head: Head) -> GlancedRows | None:
    """Return the rows of the manifest that HEAD names, None where today's software has not written it, or
    where it has no segments of its own.

    Raises `CorruptionError` where `data` is not what HEAD names.
    """
    if len(data) != head.stored_size or crc32c(data) != head.crc32c:
        raise CorruptionError(f"{head.manifest_key}: {len(data)} bytes with another checksum than HEAD's")
    body = unpack(data, MANIFEST_FORMAT)
    pages, begin = body.find(_PAGES), body.find(_SEGMENTS)
    if not 0 <= pages < begin or not _HEAD.match(body) or not body.endswith(b"}]}") or b'"owner"' in body:
        return None
    return GlancedRows(body[begin + len(_SEGMENTS) :], begin > pages + len(_PAGES))


def last_epoch(rows: GlancedRows, end_offset: int) -> int | None:
    """Return the leader epoch of the last record, None unless the last segment ends at `end_offset`."""
    try:
        row = json.loads(rows.segments[rows.segments.rfind(_ROW) : -2])
        epoch = row["leader_epochs"][-1][0]
        is_last = row["last_offset"] + 1 == end_offset
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return epoch if is_last and type(epoch) is int else None


def segment_keys(rows: GlancedRows) -> list[str]:
    """Return the keys of the segments that are not in pages, in the order of offsets."""
    return [key.decode() for key in _KEY.findall(rows.segments)]
