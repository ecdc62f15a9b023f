"""Rules for topic names (Apache Kafka ``org.apache.kafka.common.internals.Topic``). [P]"""

from __future__ import annotations

import re
from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
FIXED_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics without CreatePartitions: the partition of a group or of a transactional id depends on their number
of partitions."""
MAX_NAME_LENGTH: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def topic_name_error(name: str) -> str | None:
    """Return why `name` is an invalid topic name, in Kafka's words; None where it is valid.

    >>> topic_name_error("..")
    "Topic name is invalid: '..' is not allowed"
    """
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {reason}"
