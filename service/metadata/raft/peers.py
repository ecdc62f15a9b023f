"""How the metadata quorum reaches its peers: what the shell needs of the network, and no more. [P]"""

from __future__ import annotations

from typing import Any, Protocol

from service.metadata.endpoint import Endpoint


class Peers(Protocol):
    async def call(self, peer: Endpoint, api_key: int, version: int, message: Any) -> Any:
        """The peer's answer, a message of kio's.

        Raises `ConnectionRefusedError` where nobody listens, `UnsupportedVersion` (`wire/errors`), and
        `OSError` or `TimeoutError` for anything else.
        """
        ...
