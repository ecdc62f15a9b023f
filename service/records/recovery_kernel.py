"""The loops of recovery over batches that were found sound: one source for two lives, as `kernel`. [P]

A log of single-record batches has millions of them. What recovery has to do for each is done here with the
GIL released: index entries, and which batches the state of idempotent producers depends on.
"""

# mypy: disable-error-code="untyped-decorator, valid-type, no-untyped-call, no-any-return"
# (Cython's annotations are C types and its decorators have none.)

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

ENTRY_FIELDS: Final = 4
"""Numbers `index_entries` writes for each entry: last offset, position, greatest timestamp so far, its
offset."""
STATE_FIELDS: Final = 3
"""Numbers `index_entries` keeps between calls: bytes since the last entry, greatest timestamp, its offset."""
TABLE_FIELDS: Final = 2
"""Numbers of one slot of the table of `recent_producers`: producer id, 1 more than its batches seen; or 0."""

_PROBES = cython.declare(cython.longlong, 16)


def index_entries(
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    last_offsets: cython.longlong[::1],
    max_timestamps: cython.longlong[::1],
    start: cython.longlong,
    interval: cython.longlong,
    state: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """The index entries that are due for batches whose positions count from ``start``.

    Writes `ENTRY_FIELDS` numbers for each to ``out``, which must have room for one for each batch; returns
    how many entries. ``state`` (`STATE_FIELDS`) goes from call to call.
    """
    count: cython.longlong = len(positions)
    index: cython.longlong
    entries: cython.longlong = 0
    since: cython.longlong
    newest: cython.longlong
    newest_offset: cython.longlong
    if len(sizes) != count or len(last_offsets) != count or len(max_timestamps) != count:
        raise IndexError("columns of different lengths")
    if len(state) < 3 or len(out) < 4 * count:
        raise IndexError(f"{count} batches need more than {len(out)} numbers")
    since = state[0]
    newest = state[1]
    newest_offset = state[2]
    with cython.nogil:
        for index in range(count):
            if max_timestamps[index] > newest:
                newest = max_timestamps[index]
                newest_offset = last_offsets[index]
            if since > interval:
                out[4 * entries] = last_offsets[index]
                out[4 * entries + 1] = start + positions[index]
                out[4 * entries + 2] = newest
                out[4 * entries + 3] = newest_offset
                entries += 1
                since = 0
            since += sizes[index]
    state[0] = since
    state[1] = newest
    state[2] = newest_offset
    return entries


def recent_producers(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    most: cython.longlong,
    table: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """Which batches of ``buf`` the state of their producers depends on, the last one first.

    Those are the last ``most`` of each idempotent producer, and all that belong to transactions. ``table`` is
    room for a power of two of slots of `TABLE_FIELDS` numbers, all 0; where it is too small, more batches are
    named than must be. Writes indices into ``positions`` to ``out``, which must have room for all; returns
    how many.
    """
    count: cython.longlong = len(positions)
    slots: cython.longlong = len(table) // 2
    index: cython.longlong
    found: cython.longlong = 0
    at: cython.longlong
    producer: cython.longlong
    slot: cython.longlong
    byte: cython.longlong
    wanted: cython.longlong
    if len(out) < count or slots < 1 or slots & (slots - 1):
        raise IndexError(f"{count} batches, {len(out)} numbers and {slots} slots")
    for index in range(count):
        if positions[index] < 0 or positions[index] + 61 > len(buf):
            raise IndexError(f"no header at {positions[index]} of {len(buf)} bytes")
    with cython.nogil:
        index = count - 1
        while index >= 0:
            at = positions[index]
            producer = buf[at + 43]
            if producer < 128:  # not negative
                for byte in range(44, 51):
                    producer = producer * 256 + buf[at + byte]
                wanted = 1
                if buf[at + 22] & 0x30 == 0:
                    slot = (producer ^ (producer >> 16)) & (slots - 1)
                    for _ in range(_PROBES):
                        if table[2 * slot + 1] == 0:
                            table[2 * slot] = producer
                            table[2 * slot + 1] = 2
                            break
                        if table[2 * slot] == producer:
                            if table[2 * slot + 1] > most:
                                wanted = 0
                            else:
                                table[2 * slot + 1] += 1
                            break
                        slot = (slot + 1) & (slots - 1)
                if wanted:
                    out[found] = index
                    found += 1
            index -= 1
    return found
