"""What an offset takes in the log, where nobody tells sizes: behind the sealed segments. [P]"""

from __future__ import annotations

from typing import Final

from service.remote.manifest import Child, Load, Manifest, PageRef

UNKNOWN_BYTES_PER_OFFSET: Final = 1024
"""Where not one segment is sealed."""


def bytes_per_offset(manifest: Manifest | None, load: Load) -> int:
    """What an offset of the newest sealed segment takes, rounded up."""
    if manifest is None or not manifest.children:
        return UNKNOWN_BYTES_PER_OFFSET
    newest: Child = manifest.children[-1]
    while isinstance(newest, PageRef):
        newest = load(newest).children[-1]
    return max(1, -(-newest.log_length // (newest.last_offset + 1 - newest.base_offset)))
