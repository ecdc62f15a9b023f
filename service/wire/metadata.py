"""The canonical Metadata messages: the newest version's, with the fields that only versions 8 to 10 have. [P]

Those versions request and carry the operations that the client may do on the cluster (KIP-430); from version
11 on DescribeCluster does (KIP-700). In every other version the flag is false and the response's field is not
sent.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from typing import Final

from kio.schema.metadata.v13 import request, response
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

__all__ = [
    "OPERATIONS_NOT_ASKED",
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
]

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""Authorized operations in the response to a request that does not include them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(request.MetadataRequest):
    include_cluster_authorized_operations: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(response.MetadataResponse):
    cluster_authorized_operations: int = field(metadata={"kafka_type": "int32"}, default=OPERATIONS_NOT_ASKED)
