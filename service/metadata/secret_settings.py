"""Settings of brokers whose values are passwords, or may be. [P]

Firn takes none into the metadata; a controller of Kafka's does, in clear text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from service.config.overrides import may_be_secret
from service.metadata.controller.requests import ResourceType
from service.metadata.image import ConfigResource, MetadataImage
from service.metadata.persistent import REMOVED


def secret_count(image: MetadataImage) -> int:
    """Return the number of these settings. Goes through all resources: for a thread."""
    return sum(len(secrets) for _, secrets in _found(image))


def without_secrets(image: MetadataImage) -> MetadataImage:
    """Return the image without these settings. Goes through all resources: for a thread."""
    found = dict(_found(image))
    if not found:
        return image
    left = {
        one: {name: text for name, text in image.config(*one).items() if name not in secrets}
        for one, secrets in found.items()
    }
    changes = {one: settings or REMOVED for one, settings in left.items()}
    return replace(image, configs=image.configs.with_changes(changes))


def with_own_secrets(own: Mapping[str, str], copied: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker by a copy that may lack these, with those that this node has."""
    secrets = {name: text for name, text in own.items() if may_be_secret(name)}
    return {**secrets, **copied}


def _found(image: MetadataImage) -> Iterator[tuple[ConfigResource, set[str]]]:
    for one in image.configs:
        if one[0] == ResourceType.BROKER and (secrets := set(filter(may_be_secret, image.config(*one)))):
            yield one, secrets
