"""One row of a listener's table: who answers an API, and how its request is read.

The rows are in `api_table` and in `controller_server.api_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, Protocol

from service.base.errors import InvariantError
from service.network.request import PendingResponse, RequestContext, Response
from service.partition.metrics import ServingMetrics
from service.wire.api import RequestHeader

Handler = Callable[[Any, RequestContext, Any], Any]
"""The code that answers an API; its first argument is the node as the listener's handlers see it (`Host`)."""
Quick = Callable[[Any, RequestHeader, memoryview], Response | PendingResponse | None]
Parse = Callable[[int, memoryview, int, int], Any]
ParseSteps = Callable[[int, memoryview, int], Generator[None, None, Any]]


def _is_not_loaded(broker: Host, context: RequestContext, request: Any) -> NoReturn:
    raise InvariantError(f"the code of API {context.api_key} is not loaded")


class Host(Protocol):
    """A node as the dispatcher sees it, whatever its listener's handlers see: a broker, or a controller."""

    @property
    def metrics(self) -> ServingMetrics: ...

    async def load(self, module: str) -> ModuleType: ...

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """The controller's answer to a request that it decides."""


class Served(NamedTuple):
    """Who answers an API on a listener. `parse`: by hand, and so is the answer; in steps what has
    many elements. `late`: the module of `handlers` with what stands here, which the first request loads: a
    node without groups does without their code. `quick` answers ordinary requests from their bytes, without a
    message or a task; None for those that `handle` is for. `forwards`: whether the canonical request goes to
    the controller as it came (`Host.forward`).
    """

    handle: Handler = _is_not_loaded
    parse: Parse | None = None
    parse_steps: ParseSteps | None = None
    late: str = ""
    quick: Quick | None = None
    forwards: Callable[[Any], bool] | None = None
