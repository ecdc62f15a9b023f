"""The canonical messages of DescribeLogDirs: Kafka's newest, with a field of Firn's own. [P]

The field is tagged with a number that Apache Kafka does not use: Kafka's clients skip it (KIP-482).

    response    each directory, tag 20000: Refusal string, why it refuses records; empty while it accepts them
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field

from kio.schema.describe_log_dirs.v5 import response
from kio.schema.describe_log_dirs.v5.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import DescribeLogDirsPartition, DescribeLogDirsTopic

__all__ = [
    "DescribableLogDirTopic",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult(response.DescribeLogDirsResult):
    refusal: str = field(metadata={"kafka_type": "string", "tag": 20000}, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse(response.DescribeLogDirsResponse):
    results: tuple[DescribeLogDirsResult, ...]
