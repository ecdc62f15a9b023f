"""Row of a listener's table: the handler of an API, and the parser of its requests.

The rows are in `api_table` and in `controller_server.api_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from service.base.errors import InvariantError
from service.network.request import PendingResponse, RequestContext, Response
from service.network.request_meter import RequestQuotas
from service.partition.metrics import ServingMetrics
from service.serving.authorization import AuthorizerHost, Authorizes, OfCluster, asking
from service.wire.api import RequestHeader

Handler = Callable[[Any, RequestContext, Any], Any]
"""Handler of an API; its first argument is the node's interface to the listener's handlers (`Host`)."""
Quick = Callable[[Any, RequestContext, RequestHeader, memoryview], Response | PendingResponse | None]
Parse = Callable[[int, memoryview, int, int], Any]
ParseSteps = Callable[[int, memoryview, int], Generator[None, None, Any]]
Recall = Callable[[Any, RequestContext, RequestHeader, memoryview], Generator[None, None, Any | None]]


_MANY_BYTES: Final = 32_768
"""Requests from this size on have many elements: it takes time to parse one until that is known."""


def _is_not_loaded(broker: Host, context: RequestContext, request: Any) -> NoReturn:
    raise InvariantError(f"the handler module of API {context.api_key} is not loaded")


class Host(AuthorizerHost, Protocol):
    """Interface of a node, broker or controller, to the dispatcher."""

    @property
    def metrics(self) -> ServingMetrics: ...

    @property
    def quotas(self) -> RequestQuotas: ...

    async def load(self, module: str) -> ModuleType: ...

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """Forward a request to the controller, and return its response."""


class Served(NamedTuple):
    """Handler of an API on a listener.

    `authorizes`: who is allowed the request; a check that it names comes before the handler. `parse`: a
    hand-written parser, whose handler encodes its response itself; `parse_steps` works in steps, for requests
    with many elements; `recall` comes before it, and returns such a request by what it has in common with the
    connection's last one, or None. `late`: a module of `handlers`, with `handle` and perhaps `quick`, which
    the first request loads: a node without groups does without their code. `quick` handles ordinary requests
    from their bytes, without a message or a task, and returns None for others. `forwards` returns whether the
    canonical request goes to the controller as it is (`Host.forward`); with `is_checked_first`, only unless
    `refused_first` refuses it.
    """

    authorizes: Authorizes
    handle: Handler = _is_not_loaded
    parse: Parse | None = None
    parse_steps: ParseSteps | None = None
    recall: Recall | None = None
    late: str = ""
    quick: Quick | None = None
    forwards: Callable[[Any], bool] | None = None
    is_checked_first: bool = False

    def has_many(self, frame: memoryview) -> bool:
        """Return whether a request is to be recalled, or parsed in steps, without a try to do it at once."""
        return self.recall is not None and len(frame) > _MANY_BYTES

    def asked(self) -> Served:
        """Return the row whose handler is behind the check of `authorizes`. Raises `InvariantError` for a row
        with `quick` and such a check: it would not be made before `quick`."""
        if self.quick is not None and isinstance(self.authorizes, OfCluster):
            raise InvariantError("a handler of bytes has to ask for itself")
        return self._replace(handle=asking(self.handle, self.authorizes))

    def loaded(self, module: ModuleType) -> Served:
        """Return the row with the handlers of a module that was loaded late."""
        row = self._replace(handle=module.handle, late="", quick=getattr(module, "quick", None))
        return row.asked()


async def refused_first(host: Host, context: RequestContext, request: Any) -> Any | None:
    """Return the response to a request that this node refuses before the controller sees it, else None."""
    checks = await host.load("service.serving.token_requests")
    return checks.refused_by_broker(host, context, request)


def table(rows: Mapping[int, Served]) -> dict[int, Served]:
    """Return the table of a listener: each row's handler is behind the check that the row names."""
    return {key: row.asked() for key, row in rows.items()}
