"""Transport protocol by which the quorum calls other controllers. [P]"""

from __future__ import annotations

from typing import Any, Protocol

from service.metadata.endpoint import Endpoint


class Peers(Protocol):
    async def call(self, peer: Endpoint, api_key: int, version: int, message: Any) -> Any:
        """Call an API of `peer` and return the response, a message of kio's.

        Raises `ConnectionRefusedError` where nothing listens at the endpoint, `UnsupportedVersion`
        (`wire/errors`), and `OSError` or `TimeoutError` for any other failure.
        """
        ...
