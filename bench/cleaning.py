"""Compaction: `python -m bench.cleaning [--records N] [--keys N] [--kafka] [--rate N [--control]]`, or
`[--steady SECONDS]`.

Records of 100 B over some keys, in segments of 100 MB (a tenth where there are fewer) under `delete`; then
the topic becomes `compact`, and time, CPU and memory count until all of it but the active segment is clean.
What is left is compared with what must be, record by record. With `--rate` Firn's node has an innocent client
(`bench.innocent`) before and meanwhile, which costs CPU, too. With `--control` the client's node is another
one, with a process and a directory of its own, which does nothing else: what the client feels then comes of
sharing the machine.

With `--steady` all keys are written once and then updated for so long, in segments of a twentieth of what is
live; what counts is how large the log becomes at most, beside its live bytes. Files that only wait for their
removal, or are being copied to, are told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from crc32c import crc32c

from bench import load
from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.innocent import Felt, Innocent
from bench.measures import Measured
from bench.peers import Cpu, FirnPeer, KafkaPeer, kafka_is_here
from service.base.disk import SystemDisk
from service.base.files import read_checkpoint
from service.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC
from service.records.checkpoint_lines import decode_offsets
from service.records.kernel import index_records
from service.records.kernel_status import RECORD_FIELDS
from service.records.scan import scan_batches
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, produce_request

TOPIC: Final = "keys"
BATCH_RECORDS: Final = 1000
RECORD_BYTES: Final = 100
VALUE: Final = struct.Struct(">q80s")
KEY: Final = struct.Struct(">q")
FILLER: Final = bytes(80)
SEGMENT_BYTES: Final = 100 << 20
LEAST_SEGMENT_BYTES: Final = 1 << 20
SETTINGS: Final = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"}
_CRC: Final = struct.Struct(">I")


class Cleaned(NamedTuple):
    """Seconds, bytes that were to be cleaned, and megabytes of memory above what it was before, at most."""

    wall: float
    cpu: float
    size: int
    memory: float
    left: int
    quiet: Felt | None
    beside: Felt | None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaning", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rate", type=int, default=0, help="requests of the innocent client a second")
    parser.add_argument("--control", action="store_true", help="that client has a node of its own")
    parser.add_argument("--steady", type=int, default=0, help="seconds of steady updates instead")
    parser.add_argument("--updates", type=float, default=5e6, help="bytes of updates a second")
    add_json_option(parser)
    given = parser.parse_args()
    figures = Figures()
    if given.kafka and not kafka_is_here():
        parser.error("Apache Kafka's jars are not here: make fetch-tools")
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        folder = Path(name)
        settings = {k: v for k, v in SETTINGS.items() if k.startswith("log.cleaner")}
        firn = FirnPeer(folder / "firn", None, **settings)
        other = FirnPeer(folder / "other") if given.rate and given.control else firn
        try:
            data = folder / "firn" / "data"
            if given.steady:
                _tell_sizes("Firn", steady(firn, data, given.keys, given.steady, given.updates))
            else:
                cleaned = measure(firn, data, given.records, given.keys, given.rate, other.bootstrap)
                figures.tell("Firn, apart" if given.control else FIRN, _measured(cleaned))
        finally:
            firn.stop()
            if other is not firn:
                other.stop()
        if given.kafka:
            kafka = KafkaPeer(folder / "kafka", SETTINGS)
            try:
                if given.steady:
                    found = steady(kafka, kafka.data, given.keys, given.steady, given.updates)
                    _tell_sizes("Apache Kafka", found)
                else:
                    cleaned = measure(kafka, kafka.data, given.records, given.keys, 0)
                    figures.tell(KAFKA, _measured(cleaned))
            finally:
                kafka.stop()
    write_asked(given, figures)
    return 0


def _measured(found: Cleaned) -> Iterator[Measured]:
    gigabytes = found.size / 1e9
    yield Measured(f"compaction of {gigabytes:.2f} GB", "MB/s", None, gigabytes * 1e3 / found.wall)
    yield Measured("compaction, CPU", "s/GB", None, found.cpu / gigabytes)
    yield Measured("compaction, memory above before", "MB", None, found.memory)
    yield Measured("records left, all as they must be", "", None, found.left)
    if found.quiet is not None and found.beside is not None:
        for what, field in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("worst", "worst")):
            quiet, beside = getattr(found.quiet, field), getattr(found.beside, field)
            yield Measured(f"an innocent client alone, {what}", "ms", None, 1e3 * quiet)
            yield Measured(f"… beside compaction, {what}", "ms", None, 1e3 * beside)
            yield Measured(f"… in times, {what}", "x", None, beside / quiet)


def measure(
    peer: FirnPeer | KafkaPeer, data: Path, records: int, keys: int, rate: int, innocent: str = ""
) -> Cleaned:
    """`innocent`: the node of the client that makes `rate` requests a second, if there is one."""
    admin = Admin(peer.bootstrap)
    # Fewer records are in smaller segments: what is in the active one is not compacted.
    segment_bytes = max(min(SEGMENT_BYTES, records * RECORD_BYTES // 10), LEAST_SEGMENT_BYTES)
    load.create(peer.bootstrap, TOPIC, segment_bytes=str(segment_bytes), min_cleanable_dirty_ratio="0.01")
    expected = _fill(peer.bootstrap, records, keys)
    directory = data / f"{TOPIC}-0"
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    border = max(int(path.stem) for path in directory.glob("*.log"))
    assert border > 0, "too few records: all are in one segment"
    time.sleep(3)
    if not rate:
        return _clean(peer, admin, data, expected, size, border, None, None)
    load.create(innocent, "innocent")
    with Innocent(innocent, "innocent", rate) as client:
        time.sleep(1)
        client.begin()
        time.sleep(15)
        quiet = client.end()
        client.begin()
        return _clean(peer, admin, data, expected, size, border, quiet, client)


def _clean(
    peer: FirnPeer | KafkaPeer,
    admin: Admin,
    data: Path,
    expected: array[int],
    size: int,
    border: int,
    quiet: Felt | None,
    client: Innocent | None,
) -> Cleaned:
    before = _status_mb(peer.pid, "VmRSS:")
    Path(f"/proc/{peer.pid}/clear_refs").write_text("5")  # the peak counts from here on
    with Cpu(peer.pid) as cpu:
        admin.alter(TOPIC, cleanup_policy="compact")
        wait_until("the topic to be compacted", lambda: _cleaned(data) >= border, 600, 0.05)
    beside = client.end() if client is not None else None
    memory = _status_mb(peer.pid, "VmHWM:") - before
    left = _check(data / f"{TOPIC}-0", border, expected)
    return Cleaned(cpu.wall, cpu.all, size, memory, left, quiet, beside)


class Sizes(NamedTuple):
    """Bytes: ``live`` ones, of the log at most, and of all its files at most."""

    live: int
    log: int
    files: int


def steady(peer: FirnPeer | KafkaPeer, data: Path, keys: int, seconds: float, rate: float) -> Sizes:
    """Update keys by chance, so many bytes a second."""
    last = array("q", (-1,)) * keys
    batches = _batches(1 << 62, keys, last)
    first = list(_batches(keys, keys, last, by_turns=True))
    live = sum(map(len, first))
    load.create(
        peer.bootstrap,
        TOPIC,
        cleanup_policy="compact",
        segment_bytes=str(max(live // 20, LEAST_SEGMENT_BYTES)),
    )
    directory = data / f"{TOPIC}-0"
    most_log = most_files = 0
    with RawConnection(peer.bootstrap, 60) as connection:
        for batch in first:
            connection.send(load.framed(produce_request(TOPIC, 0, batch)))
            connection.receive_frame()
        began, sent, look_at = time.monotonic(), 0, 0.0
        while (now := time.monotonic() - began) < seconds:
            batch = next(batches)
            connection.send(load.framed(produce_request(TOPIC, 0, batch)))
            connection.receive_frame()
            sent += len(batch)
            if now >= look_at:
                look_at = now + 0.1
                log, files = _sizes(directory)
                most_log, most_files = max(most_log, log), max(most_files, files)
            time.sleep(max(sent / rate - now, 0))
    assert sent > 0.9 * rate * seconds, f"no more than {sent} bytes were sent"
    assert _cleaned(data) > keys, "nothing was compacted"
    return Sizes(live, most_log, most_files)


def _sizes(directory: Path) -> tuple[int, int]:
    """Bytes of the segments, and of all files."""
    log = files = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            files += size if path.suffix not in (".index", ".timeindex") else 0  # Kafka's are sparse
            log += size if path.suffix == ".log" else 0
    return log, files


def _tell_sizes(name: str, found: Sizes) -> None:
    print(
        f"{name}: {found.live / 1e6:.0f} MB are live; the log had {found.log / found.live:.2f} x at most, "
        f"with what was being copied or waited for its removal {found.files / found.live:.2f} x"
    )


def _status_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(field))


def _cleaned(data: Path) -> int:
    path = data / "cleaner-offset-checkpoint"
    if not path.exists() or not path.stat().st_size:
        return -1
    return decode_offsets(read_checkpoint(SystemDisk(), path)).get((TOPIC, 0), -1)


def _fill(bootstrap: str, records: int, keys: int) -> array[int]:
    """Produce; the last offset of each key, -1 for one that was never drawn."""
    last = array("q", (-1,)) * keys
    with RawConnection(bootstrap, 60) as connection:
        under_way = 0
        for data in _batches(records, keys, last):
            connection.send(load.framed(produce_request(TOPIC, 0, data)))
            under_way += 1
            if under_way == 5:
                connection.receive_frame()
                under_way -= 1
        for _ in range(under_way):
            connection.receive_frame()
    return last


def _batches(records: int, keys: int, last: array[int], *, by_turns: bool = False) -> Iterator[bytes]:
    """The same ones every time: a record is its key and, as value, its own number. Keys are drawn, or come
    one after the other."""
    random = Random(1)
    now_ms = int(time.time() * 1000)
    heads = [_head(delta) for delta in range(BATCH_RECORDS)]
    for first in range(0, records, BATCH_RECORDS):
        parts: list[bytes] = []
        count = min(BATCH_RECORDS, records - first)
        for delta in range(count):
            key = (first + delta) % keys if by_turns else int(random.random() * keys)
            last[key] = first + delta
            parts += (heads[delta], KEY.pack(key), b"\xb0\x01", VALUE.pack(first + delta, FILLER), b"\x00")
        body = b"".join(parts)
        header = bytearray(HEADER_SIZE)
        length = HEADER_SIZE - LOG_OVERHEAD + len(body)
        HEADER.pack_into(
            header, 0, 0, length, -1, MAGIC, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count
        )  # fmt: skip
        _CRC.pack_into(header, 17, crc32c(body, crc32c(header[21:])))
        yield bytes(header) + body


def _head(delta: int) -> bytes:
    """Length, attributes, timestamp, offset and the key's length of a record."""
    zigzag = 2 * delta
    offset = bytes([zigzag]) if zigzag < 128 else bytes([zigzag & 127 | 128, zigzag >> 7])
    size = 1 + 1 + len(offset) + 1 + KEY.size + 2 + VALUE.size + 1
    return bytes([2 * size & 127 | 128, 2 * size >> 7, 0, 0]) + offset + bytes([2 * KEY.size])


def _check(directory: Path, border: int, expected: array[int]) -> int:
    """Below `border` there are the last records of keys and no others: how many."""
    wanted = {offset: key for key, offset in enumerate(expected) if 0 <= offset < border}
    beyond = 0
    for path in sorted(directory.glob("*.log")):
        if int(path.stem) >= border:
            continue
        data = path.read_bytes()
        found = scan_batches(data)
        assert found.end == len(data), f"{path}: {found.status.reason}"
        for position, size, base, count in zip(
            found.positions, found.sizes, found.base_offsets, found.record_counts, strict=True
        ):
            rows = array("q", bytes(8 * RECORD_FIELDS * count))
            index_records(data, position + HEADER_SIZE, position + size, count, rows)
            for at in range(0, len(rows), RECORD_FIELDS):
                offset = base + rows[at + 1]
                (key,) = KEY.unpack_from(data, rows[at + 2])
                assert VALUE.unpack_from(data, rows[at + 4]) == (offset, FILLER)
                if wanted.pop(offset, None) != key:
                    # Superseded by a record that was not below the border when the keys were gathered.
                    assert expected[key] >= border, f"{offset} is there, and not the last of its key"
                    beyond += 1
    assert not wanted, f"{len(wanted)} records are missing"
    return sum(0 <= offset < border for offset in expected) + beyond


if __name__ == "__main__":
    sys.exit(main())
