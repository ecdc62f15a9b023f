"""Question to a segment object: may it have records of some keys? Blocking calls, for pool threads."""

from __future__ import annotations

from typing import NamedTuple

from service.base.types import Buffer
from service.remote.format.key_filter import KeyFilter
from service.remote.format.segment_object import KEY_FILTER, Footer
from service.remote.reading.object_reader import checked_section, read_section
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore


class ObjectEnd(NamedTuple):
    """Bytes of an object from `start` to its end."""

    start: int
    data: Buffer


def open_key_filter(store: ObjectStore, footer: Footer, end: ObjectEnd | None = None) -> KeyFilter | None:
    """Return the filter of the object with this footer, None where it has none: it may have any key.

    One ranged GET, unless it lies in `end`. `CorruptionError` for a damaged filter, which names the object.
    """
    section = footer.sections.get(KEY_FILTER)
    if section is None:
        return None
    key = footer.identity.key
    with naming(key):
        KeyFilter.check_size(section.length)
        if end is None or section.position < end.start:
            return KeyFilter.open(read_section(store, key, section))
        body = memoryview(end.data)[section.position - end.start : section.end - end.start]
        return KeyFilter.open(checked_section(section, body))


def may_have_keys(store: ObjectStore, footer: Footer, filter_hashes: bytes) -> bool:
    """Return False only if no record of the object has one of the keys with these hashes.

    `filter_hashes` are as for `KeyFilter.hits`. An object without keys, by its footer, is not read.
    """
    if footer.keyed_record_count == 0:
        return False
    key_filter = open_key_filter(store, footer)
    return key_filter is None or key_filter.hits(filter_hashes)
