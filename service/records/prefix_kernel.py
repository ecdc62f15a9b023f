"""Loops that inflate first bytes of lz4 and snappy; like `kernel`, one source, compiled or interpreted. [P]

The key of a batch's first record lies in the first bytes of its records. Those cost a small part of what the
whole does, and neither a library's context nor an allocation. What comes after them is not read and not
verified: whoever needs more than the key inflates the whole (`compression`). So does whoever gets no bytes
here: of data that are damaged, or in any way unusual, none are returned.

Source: LZ4 `lz4_Frame_format.md`, `lz4_Block_format.md`; Snappy `format_description.txt`. The framing of
snappy-java is as in `compression`.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32
else:
    from service.records.kernel import int32

COMPILED: Final[bool] = cython.compiled

NOTHING: Final = -1
"""The data are left to the library: they are damaged, unusual, or of another codec."""

_NOTHING = cython.declare(cython.longlong, NOTHING)
_SNAPPY = cython.declare(cython.longlong, 2)  # codecs as in a batch's attributes
_LZ4 = cython.declare(cython.longlong, 3)
_MOST_CLAIMED = cython.declare(cython.longlong, 0xFFFFFFFF)
_IS_RAW = cython.declare(cython.longlong, 0x80000000)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _little(data: cython.p_const_uchar, at: cython.longlong, size: cython.longlong) -> cython.longlong:
    """Return a little-endian number of 1 to 4 bytes."""
    found: cython.longlong = 0
    while size > 0:
        size -= 1
        found = found * 256 + data[at + size]
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copied(
    data: cython.p_const_uchar,
    at: cython.longlong,
    size: cython.longlong,
    out: cython.p_uchar,
    made: cython.longlong,
) -> cython.longlong:
    """Copy `size` bytes of `data` to `out`, which has `made`; return how many it has then."""
    index: cython.longlong
    for index in range(size):
        out[made + index] = data[at + index]
    return made + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _repeated(
    back: cython.longlong, size: cython.longlong, out: cython.p_uchar, made: cython.longlong
) -> cython.longlong:
    """Copy `size` bytes of `out` from `back` bytes before its end to its end, those that this writes among
    them."""
    index: cython.longlong
    for index in range(made, made + size):
        out[index] = out[index - back]
    return made + size


# lz4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lz4_block(
    data: cython.p_const_uchar,
    at: cython.longlong,
    end: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Inflate a block until `out` has `room` bytes, or the block ends; return how many, or `NOTHING`."""
    made: cython.longlong = 0
    token: cython.longlong
    size: cython.longlong
    back: cython.longlong
    while at < end:
        token = data[at]
        at += 1
        size = token >> 4
        if size == 15:
            while at < end and data[at] == 255:
                size += 255
                at += 1
            if at == end:
                return _NOTHING
            size += data[at]
            at += 1
        if size > end - at:
            return _NOTHING
        made = _copied(data, at, min(size, room - made), out, made)
        at += size
        if made == room or at == end:
            return made
        if end - at < 2:
            return _NOTHING
        back = _little(data, at, 2)
        at += 2
        if back == 0 or back > made:
            return _NOTHING
        size = token & 15
        if size == 15:
            while at < end and data[at] == 255:
                size += 255
                at += 1
            if at == end:
                return _NOTHING
            size += data[at]
            at += 1
        made = _repeated(back, min(size + 4, room - made), out, made)
        if made == room:
            return made
    return _NOTHING  # a block ends in literals


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lz4(
    data: cython.p_const_uchar,
    at: cython.longlong,
    end: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Inflate the start of a frame's first block. Blocks must be independent, and without a dictionary."""
    flags: cython.longlong
    sizes: cython.longlong
    size: cython.longlong
    if (
        end - at < 11
        or data[at] != 0x04
        or data[at + 1] != 0x22
        or data[at + 2] != 0x4D
        or data[at + 3] != 0x18
    ):
        return _NOTHING
    flags = data[at + 4]
    sizes = data[at + 5]
    if flags & 0xE3 != 0x60 or sizes & 0x8F or sizes < 0x40:  # version 1; what is reserved is 0
        return _NOTHING
    at += 7
    if flags & 8:
        at += 8  # size of the content
    if end - at < 4:
        return _NOTHING
    size = _little(data, at, 4)
    at += 4
    if size & _IS_RAW:
        size -= _IS_RAW
        if size == 0 or size > end - at or size > 1 << 2 * (sizes >> 4) + 8:
            return _NOTHING
        return _copied(data, at, min(size, room), out, 0)
    if size == 0 or size > end - at or size > 1 << 2 * (sizes >> 4) + 8:
        return _NOTHING
    return _lz4_block(data, at, at + size, out, room)


# snappy


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _snappy_block(
    data: cython.p_const_uchar,
    at: cython.longlong,
    end: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Inflate a raw block until `out` has `room` bytes, or what the block claims to have."""
    made: cython.longlong = 0
    claimed: cython.longlong = 0
    shift: cython.longlong = 0
    byte: cython.longlong = 0x80
    kind: cython.longlong
    size: cython.longlong
    back: cython.longlong
    while byte >= 0x80:
        if at == end or shift > 28:
            return _NOTHING
        byte = data[at]
        at += 1
        claimed |= (byte & 0x7F) << shift
        shift += 7
    if claimed > _MOST_CLAIMED:
        return _NOTHING
    room = min(room, claimed)
    while made < room:
        if at == end:
            return _NOTHING
        byte = data[at]
        at += 1
        kind = byte & 3
        size = byte >> 2
        if kind == 0:
            if size >= 60:
                if size - 59 > end - at:
                    return _NOTHING
                kind = size - 59
                size = _little(data, at, kind)
                at += kind
            size += 1
            if size > end - at:
                return _NOTHING
            made = _copied(data, at, min(size, room - made), out, made)
            at += size
            continue
        if (kind if kind < 3 else 4) > end - at:
            return _NOTHING
        if kind == 1:
            back = (byte >> 5) * 256 + data[at]
            size = (size & 7) + 4
            at += 1
        elif kind == 2:
            back = _little(data, at, 2)
            size += 1
            at += 2
        else:
            back = _little(data, at, 4)
            size += 1
            at += 4
        if back == 0 or back > made:
            return _NOTHING
        made = _repeated(back, min(size, room - made), out, made)
    return made


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _snappy(
    data: cython.p_const_uchar,
    at: cython.longlong,
    end: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Inflate the start of the first block, be it one of snappy-java's framing or all there is."""
    size: cython.longlong
    if (
        end - at >= 8
        and data[at] == 0x82  # b"\x82SNAPPY\0"
        and data[at + 1] == 0x53
        and data[at + 2] == 0x4E
        and data[at + 3] == 0x41
        and data[at + 4] == 0x50
        and data[at + 5] == 0x50
        and data[at + 6] == 0x59
        and data[at + 7] == 0
    ):
        if end - at < 20:
            return _NOTHING
        size = int32(data, at + 16)
        at += 20
        if size <= 0 or size > end - at:
            return _NOTHING
        end = at + size
    return _snappy_block(data, at, end, out, room)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def first_bytes(
    codec: cython.longlong,
    data: cython.p_const_uchar,
    at: cython.longlong,
    end: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Inflate what ``data[at:end]`` begins with into ``out``, ``room`` bytes at most; return how many.

    Fewer where the first block has no more; `NOTHING` where the library has to say what the data are.
    """
    if codec == _LZ4:
        return _lz4(data, at, end, out, room)
    if codec == _SNAPPY:
        return _snappy(data, at, end, out, room)
    return _NOTHING


def inflate_start(
    codec: cython.longlong, buf: cython.const[cython.uchar][::1], out: cython.uchar[::1]
) -> int:
    """Do what `first_bytes` does with all of ``buf`` and of ``out``."""
    found: cython.longlong
    if len(buf) == 0 or len(out) == 0:
        return NOTHING
    if cython.compiled:
        found = first_bytes(codec, cython.address(buf[0]), 0, len(buf), cython.address(out[0]), len(out))
    else:
        found = first_bytes(codec, buf, 0, len(buf), out, len(out))
    return found
