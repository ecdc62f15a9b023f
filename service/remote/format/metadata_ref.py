"""Reference to a snapshot of the cluster's metadata, as `cluster.json` and cuts have it. [P]"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from service.base.errors import CorruptionError
from service.remote.format.fields import MAX_INTEGER, int_field, str_field
from service.remote.format.keys import MAX_EPOCH, MetadataKey, parse_key

MAX_METADATA_BYTES: Final = 1 << 30
MAX_LIFE: Final = (1 << 31) - 1
_OMITTED: Final = "omitted"


class MetadataRef(NamedTuple):
    """Snapshot of the cluster's metadata: all below `end_offset`, whose last record is of `epoch`."""

    key: str
    end_offset: int
    epoch: int
    size: int
    crc32c: int
    life: int = 0
    """of the cluster, as in the snapshot (`LifeRecord`)"""
    omitted_users: int = 0
    """users whose SCRAM credentials the snapshot lacks, as its writer left them out"""
    omitted_settings: int = 0
    """settings of brokers that it lacks, as they may be passwords"""

    @property
    def position(self) -> tuple[int, int, int]:
        """Sort key of snapshots: the newest has the greatest."""
        return self.life, self.epoch, self.end_offset


def metadata_ref_fields(metadata: MetadataRef) -> dict[str, Any]:
    """Return the JSON object that names the snapshot."""
    fields = metadata._asdict()
    for name in ("life", "omitted_users", "omitted_settings"):
        if not fields[name]:
            del fields[name]
    if metadata.omitted_users or metadata.omitted_settings:
        fields["credentials"] = _OMITTED
    return fields


def parse_metadata_ref(fields: dict[str, Any]) -> MetadataRef:
    """Return the snapshot that the JSON object names; raise `CorruptionError` where it cannot be one."""
    ref = MetadataRef(
        key=str_field(fields, "key"),
        end_offset=int_field(fields, "end_offset", 0, MAX_INTEGER),
        epoch=int_field(fields, "epoch", 0, MAX_EPOCH),
        size=int_field(fields, "size", 1, MAX_METADATA_BYTES),
        crc32c=int_field(fields, "crc32c", 0, 0xFFFFFFFF),
        life=int_field(fields, "life", 0, MAX_LIFE) if "life" in fields else 0,
        omitted_users=_count(fields, "omitted_users"),
        omitted_settings=_count(fields, "omitted_settings"),
    )
    parsed = parse_key(ref.key)
    if not isinstance(parsed, MetadataKey) or parsed[:2] != (ref.end_offset, ref.epoch):
        raise CorruptionError(f"{ref.key!r} is not the key of the metadata up to {ref.end_offset}")
    return ref


def _count(fields: dict[str, Any], name: str) -> int:
    return int_field(fields, name, 0, MAX_INTEGER) if name in fields else 0
