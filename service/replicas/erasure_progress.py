"""Progress of the orders of erasure in the metadata, for who acts once they are over somewhere."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from service.base.steps import Steps
from service.metadata.controller.erase_control import unerased
from service.metadata.image import MetadataImage
from service.remote.catalog import IN_BUCKET

_BUCKET_ONLY = frozenset((IN_BUCKET,))


class ErasedLogs:
    """Finds the orders that all logs have carried out. Remembers them: who was told of an order need not be
    told again because a replica has come since, which gets what the others have."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._over: frozenset[UUID] = frozenset()

    def find(self) -> Steps[frozenset[UUID]]:
        """Return the ids of orders in the metadata that each replica has carried out."""
        image, over = self._image(), set[UUID]()
        for order_id, order in image.erasures.items():
            yield
            if order_id in self._over:
                over.add(order_id)
                continue
            for _, lacking in unerased(image, order):
                if not lacking <= _BUCKET_ONLY:
                    break
                yield
            else:
                over.add(order_id)
        self._over = frozenset(over)
        return self._over


def topics_over_in_bucket(before: MetadataImage, image: MetadataImage) -> frozenset[UUID]:
    """Return the topics of orders that were done, or removed, between two images: their old objects need not
    be kept in a cache."""
    found: set[UUID] = set()
    for order_id, order in before.erasures.items():
        now = image.erasures.get(order_id)
        if now is None or (order.is_open and not now.is_open):
            found.update(order.topics)
    return frozenset(found)
