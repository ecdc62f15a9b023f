"""Key and trust stores of a node that is only a controller: they follow the settings in the metadata.

As in Kafka, whoever alters them is told only what every node can check; a store that cannot be used changes
nothing, and `/readyz` says why. Of the other settings of such a node none can be altered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from service.base.errors import ConfigError
from service.config.settings import BrokerConfig
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.replicas.dynamic_config import dynamic_config

if TYPE_CHECKING:
    from service.network.tls.node_tls import NodeTls

_LOG = logging.getLogger(__name__)


def follow_stores(tls: NodeTls, config: BrokerConfig, metadata: Publisher) -> None:
    """Take the stores that the metadata names for this node, now and whenever it says something of them."""
    names = ((ResourceType.BROKER, ""), (ResourceType.BROKER, str(config.node_id)))

    def take(image: MetadataImage) -> None:
        try:
            changed = dynamic_config(config, image)
        except ConfigError as e:
            _LOG.error("settings of this node in the metadata are not used: %s", e)
        else:
            tls.configure(changed.cluster.security)

    def published(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        if any(one in delta.configs for one in names):
            take(after)

    metadata.subscribe(published)
    take(metadata.image)
