"""Channels to the other brokers of the cluster, by broker id, on the listener between brokers."""

from __future__ import annotations

from collections.abc import Callable

from service.client.node_channel import Channel, Channels
from service.metadata.image import EndpointImage, MetadataImage


class BrokerChannels:
    """The channels of one purpose. None is made before a broker is asked for. Owned by the event loop."""

    def __init__(
        self, image: Callable[[], MetadataImage], listener: str, new_channels: Callable[[], Channels]
    ) -> None:
        self._image = image
        self._listener = listener
        self._new_channels = new_channels
        self._channels: Channels | None = None
        self._places: dict[int, EndpointImage] = {}
        """where each broker was last"""

    def to(self, broker_id: int) -> Channel:
        """Return the channel to a broker at its present address. Raises `ConnectionError` if it has none."""
        if self._channels is None:
            self._channels = self._new_channels()
        broker = self._image().brokers.get(broker_id)
        endpoints = () if broker is None else broker.endpoints
        place = next((one for one in endpoints if one.name == self._listener), None)
        if place is None:
            raise ConnectionError(f"the address of broker {broker_id} is not known")
        before = self._places.get(broker_id, place)
        if (before.host, before.port) != (place.host, place.port):
            self._channels.disconnect(before, "the broker has another address now")
        self._places[broker_id] = place
        return self._channels.to(place)

    def disconnect(self, broker_id: int, reason: str) -> None:
        """End the connection to a broker, if there is one; its calls fail."""
        place = self._places.get(broker_id)
        if place is not None and self._channels is not None:
            self._channels.disconnect(place, reason)

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        if self._channels is not None:
            await self._channels.close()
