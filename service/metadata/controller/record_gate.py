"""Gate of the records of security and quotas: every Firn node of the cluster can read them. [P]

Software from before these records refuses to start on them (docs/versions.md). Kafka's nodes read them.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.features import OWN_PREFIX, RECORDS_VERSION
from service.metadata.image import FeatureRange, MetadataImage


def check_every_node_reads(image: MetadataImage) -> None:
    """Check the features of all registered nodes.

    Raises `RequestError` UNSUPPORTED_VERSION with the id of the first Firn node, a broker or a controller,
    that does not support the records.
    """
    for kind, nodes in (("Broker", image.brokers), ("Controller", image.controllers)):
        for node_id in sorted(nodes):
            if not _reads(nodes[node_id].features):
                raise RequestError(
                    ErrorCode.unsupported_version,
                    f"{kind} {node_id} runs software without {RECORDS_VERSION} 1, which cannot read the "
                    "records of ACLs, SCRAM credentials, delegation tokens and client quotas: upgrade or "
                    "unregister it.",
                )


def _reads(features: tuple[FeatureRange, ...]) -> bool:
    own = [one for one in features if one.name.startswith(OWN_PREFIX)]
    return not own or any(one.name == RECORDS_VERSION and one.max_level >= 1 for one in own)
