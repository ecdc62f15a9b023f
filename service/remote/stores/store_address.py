"""Address of a store, by which any process of the node can open a client of it."""

from __future__ import annotations

from typing import NamedTuple

from service.base.world import World
from service.remote.stores.obstore_store import ObstoreStore, StoreOptions, open_store
from service.remote.stores.s3_encryption import S3Encryption


class StoreAddress(NamedTuple):
    """Arguments of `open_store`. There is no secret in it: credentials are those of the environment."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    encryption: S3Encryption | None = None
    options: StoreOptions = StoreOptions()

    def open(self, world: World) -> ObstoreStore:
        """Open a client; nothing is sent yet. Raises `ConfigError`."""
        return open_store(
            self.url,
            world=world,
            endpoint=self.endpoint,
            region=self.region,
            encryption=self.encryption,
            options=self.options,
        )
