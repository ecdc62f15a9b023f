"""Arguments that name partitions: `flights`, `flights:3`, `flights:0,2,5`. [P]"""

from __future__ import annotations

import argparse

from service.client.places import NamedPartitions, numbers_of

METAVAR = "TOPIC[:PARTITION,…]"


def named_partitions(text: str) -> NamedPartitions:
    """Parse one argument; `ArgumentTypeError` for any other text."""
    topic, colon, listed = text.partition(":")
    if not topic or (colon and not listed):
        raise argparse.ArgumentTypeError(f"expected {METAVAR}, found {text!r}")
    return NamedPartitions(topic, whole_numbers(listed) if colon else None)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse `1,2,3`; `ArgumentTypeError` for any other text."""
    from service.base.errors import ConfigError  # not for --help

    try:
        return numbers_of(text)
    except ConfigError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
