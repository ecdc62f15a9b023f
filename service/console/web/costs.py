"""Cost of objects and requests, at prices that the operator configures. [P]

Prices are per unit as stores bill them: a GB (2^30 bytes, as S3 counts them) for a month, here of 30 days,
and a thousand requests. The defaults are those of S3 Standard in us-east-1 in 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from service.base.errors import ConfigError

GB: Final = 2**30
MONTH_DAYS: Final = 30
PART_BYTES: Final = 8 << 20
"""Larger objects are uploaded in parts of this size: one request each, one to begin and one to end."""
DAY_MS: Final = 86_400_000

USUAL_CLASS: Final = "STANDARD"

DEFAULTS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "storage-gb-month": 0.023,
        "write-1000": 0.005,
        "read-1000": 0.0004,
    }
)
READS: Final = frozenset({"get", "get_range", "get_suffix", "get_tagged", "head"})
"""Calls of the store that are billed as reads; deletions are free; all others are billed as writes."""
FREE: Final = frozenset({"delete"})


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices; `classes` has the price of a GB and month for storage classes that differ from the usual
    one."""

    storage_gb_month: float = DEFAULTS["storage-gb-month"]
    write_1000: float = DEFAULTS["write-1000"]
    read_1000: float = DEFAULTS["read-1000"]
    currency: str = "USD"
    classes: Mapping[str, float] = field(default_factory=dict)

    def month(self, sizes: Mapping[str, int]) -> float:
        """Return the cost of a month of these bytes by storage class."""
        return sum(
            self.classes.get(kind, self.storage_gb_month) * bytes_ / GB for kind, bytes_ in sizes.items()
        )

    def unpriced(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the storage classes in use that have another price, which is not configured."""
        return [kind for kind, size in sizes.items() if size and kind not in (*self.classes, USUAL_CLASS)]

    def day(self, sizes: Mapping[str, int]) -> float:
        return self.month(sizes) / MONTH_DAYS

    def writes(self, requests: float) -> float:
        return self.write_1000 * requests / 1000

    def reads(self, requests: float) -> float:
        return self.read_1000 * requests / 1000


def prices(pairs: Sequence[tuple[str, str]], currency: str = "USD") -> Prices:
    """Parse ``key=value`` pairs; ``storage-gb-month.GLACIER_IR=0.004`` is the price of one storage class.

    Raises `ConfigError` for an unknown key or an invalid number.
    """
    found, classes = dict(DEFAULTS), {}
    for key, written in pairs:
        try:
            value = float(written)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise ConfigError(f"--price {key}: {written!r} is not a price")
        begin, dot, kind = key.partition(".")
        if dot and begin == "storage-gb-month" and kind:
            classes[kind] = value
        elif key in DEFAULTS:
            found[key] = value
        else:
            raise ConfigError(f"--price {key}: there are {', '.join(DEFAULTS)} and storage-gb-month.CLASS")
    return Prices(
        found["storage-gb-month"], found["write-1000"], found["read-1000"], currency,
        classes,
    )  # fmt: skip


def write_requests(size: int) -> int:
    """Return the number of requests that wrote an object of `size` bytes."""
    return 1 if size <= PART_BYTES else 2 + -(-size // PART_BYTES)
