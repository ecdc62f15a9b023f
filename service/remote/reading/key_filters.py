"""Question to a segment object: may it have records of some keys? Blocking calls, for pool threads.

A filter is made of the records, and no reader depends on it: a damaged one is named in the log, and its
object is read as one without a filter.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.format.key_filter import KeyFilter
from service.remote.format.segment_object import KEY_FILTER, Footer
from service.remote.reading.object_reader import checked_section, read_section
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore

log = logging.getLogger(__name__)


class ObjectEnd(NamedTuple):
    """Bytes of an object from `start` to its end."""

    start: int
    data: Buffer


def open_key_filter(store: ObjectStore, footer: Footer, end: ObjectEnd | None = None) -> KeyFilter | None:
    """Return the filter of the object with this footer; None where it has none, or a damaged one: it may have
    any key.

    One ranged GET, unless it lies in `end`.
    """
    section = footer.sections.get(KEY_FILTER)
    if section is None:
        return None
    key = footer.identity.key
    try:
        with naming(key):
            KeyFilter.check_size(section.length)
            if end is None or section.position < end.start:
                return KeyFilter.open(read_section(store, key, section))
            body = memoryview(end.data)[section.position - end.start : section.end - end.start]
            return KeyFilter.open(checked_section(section, body))
    except CorruptionError as e:
        log.warning("%s: the key filter is damaged, so that the object may have any key (firn fsck)", e)
        return None


def may_have_keys(store: ObjectStore, footer: Footer, filter_hashes: bytes) -> bool:
    """Return False only if no record of the object has one of the keys with these hashes.

    `filter_hashes` are as for `KeyFilter.hits`. An object without keys, by its footer, is not read.
    """
    if footer.keyed_record_count == 0:
        return False
    key_filter = open_key_filter(store, footer)
    return key_filter is None or key_filter.hits(filter_hashes)
