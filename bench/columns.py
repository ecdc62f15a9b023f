"""`python -m bench.columns`: how fast record batches become columns, on one core, compiled and interpreted.

CPU time of this process, the best of some rounds: other work on the machine hardly moves it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final
from unittest.mock import patch

from service.records import column_kernel, columns
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.columns import ColumnDecoder
from tests.support.kernels import interpreted

TARGET: Final = 20_000_000
"""Records per second and core: compiled, 100-byte values, no keys, uncompressed, all columns but headers."""
ROUNDS: Final = 7
WANTS: Final = {
    "all but headers": frozenset({"key", "value", "offset", "timestamp", "timestampType"}),
    "all": columns.COLUMNS,
    "value": frozenset({"value"}),
    "offset, timestamp": frozenset({"offset", "timestamp"}),
    "offset": frozenset({"offset"}),
}


def log(codec: CompressionType, records: int, batch_bytes: int) -> tuple[bytes, int]:
    """A log of at least so many records of 100 bytes in batches of about ``batch_bytes``, as if inflated."""
    data, offset = bytearray(), 0
    while offset < records:
        batch = BatchBuilder(offset, codec)
        while batch.size < batch_bytes:
            number = offset + len(batch)
            batch.add(1_700_000_000_000 + number // 8, None, b"%020d" % number * 5)
        data += batch.build()
        offset += len(batch)
    return bytes(data), offset


def records_per_second(decoder: ColumnDecoder, data: bytes, records: int, seconds: float = 0.05) -> float:
    """The best of some rounds of at least ``seconds`` each."""
    best = 0.0
    for _ in range(ROUNDS):
        done, start = 0, time.process_time()
        while (spent := time.process_time() - start) < seconds:
            done += sum(chunk.count for chunk in decoder.decode(data))
        if done % records:
            raise AssertionError(f"{done} is no multiple of the {records} records that there are")
        best = max(best, done / spent)
    return best


def measure(records: int, batch_bytes: int) -> dict[tuple[CompressionType, str], float]:
    """Records per second by codec and wish."""
    found = {}
    for codec in CompressionType:
        data, count = log(codec, records, batch_bytes)
        for name, want in WANTS.items():
            found[codec, name] = records_per_second(ColumnDecoder(want=want), data, count)
    return found


def show(title: str, found: dict[tuple[CompressionType, str], float]) -> None:
    print(f"{title}: million records per second and core")
    print(" " * 8, *(f"{name:>18}" for name in WANTS))
    for codec in CompressionType:
        print(f"{codec.name.lower():8}", *(f"{found[codec, name] / 1e6:18.2f}" for name in WANTS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.columns", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000, help="in a log (default: 500,000)")
    parser.add_argument("--batch-bytes", type=int, default=16_384, help="in a batch (default: 16 KiB)")
    arguments = parser.parse_args()
    reached = 0.0
    if column_kernel.COMPILED:
        compiled = measure(arguments.records, arguments.batch_bytes)
        show("compiled", compiled)
        reached = compiled[CompressionType.NONE, "all but headers"]
        verdict = "reached" if reached >= TARGET else "MISSED"
        print(f"target: {TARGET / 1e6:.0f} million uncompressed, all but headers: {verdict}\n")
    else:
        print("the kernel is not compiled here: make kernel\n", file=sys.stderr)
    writer = interpreted(with_cython=True)["column_kernel"].ColumnWriter
    with patch.object(columns, "ColumnWriter", writer):
        show("interpreted", measure(arguments.records // 100, arguments.batch_bytes))
    return 0 if reached >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
