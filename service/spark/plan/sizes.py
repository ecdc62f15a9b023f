"""Estimate of the log bytes per offset after the last sealed segment, where no size is known. [P]"""

from __future__ import annotations

from typing import Final

from service.remote.format.manifest import Child, Load, Manifest, PageRef, SegmentEntry

UNKNOWN_BYTES_PER_OFFSET: Final = 1024
"""The estimate before the first segment is sealed."""


def bytes_per_offset(manifest: Manifest | None, load: Load | None) -> int:
    """Return the bytes per offset of the newest sealed segment, or page without `load`, rounded up."""
    if manifest is None or not manifest.children:
        return UNKNOWN_BYTES_PER_OFFSET
    newest: Child = manifest.children[-1]
    while isinstance(newest, PageRef) and load is not None:
        newest = load(newest).children[-1]
    size = newest.log_length if isinstance(newest, SegmentEntry) else newest.size_bytes
    return max(1, -(-size // (newest.last_offset + 1 - newest.base_offset)))
