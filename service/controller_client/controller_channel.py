"""Queue of requests to the active controller, which may be on this node and may move.

`Controllers` sends one request at a time, in order (Kafka's ``NodeToControllerRequestThread``). Requests that
must not wait behind slow ones, such as heartbeats, have a queue and channels of their own. The active
controller is the leader that this node's quorum knows; a request waits until there is one, and ends with
REQUEST_TIMED_OUT at its own deadline.

A request is sent again if the controller has certainly not processed it (it was never sent, or the response
was NOT_CONTROLLER). After a lost connection the controller may have processed it: then it is sent again only
if `Api.is_safe_again` allows that. Kafka sends everything again. A request that may be sent again is also
moved to the next controller as soon as one is known, without waiting for the old one's response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.futures import retrieve_exception
from service.client.node_channel import Reachable, was_sent
from service.wire.apis import APIS

_MAX_CHECKED: Final = 1_000
"""Elements of a response that are checked for NOT_CONTROLLER: all of them have that error, or none."""


class Active(NamedTuple):
    """The quorum's leader, and the endpoint of its controller listener."""

    node_id: int
    epoch: int
    endpoint: Reachable


class Leaders(Protocol):
    """Source of the metadata quorum's leader, as this node knows it."""

    def active(self) -> Active | None:
        """Return the active controller; None while no leader or no endpoint of it is known."""


class Calls(Protocol):
    """Requests to other nodes; `client.node_channel.Channels` is one, and says what is raised."""

    async def call(
        self,
        endpoint: Reachable,
        api_key: int,
        version: int | None,
        message: Any,
        *,
        timeout_ms: int | None = None,
    ) -> Any: ...


Here = Callable[[int, Any], Awaitable[Any]]
"""Sends (api key, canonical request) to this node's own controller and returns the response. Raises
`RequestError` NOT_CONTROLLER where it is not active."""


class Superseded(ConnectionAbortedError):
    """Another controller was elected; the old one may have processed the request."""


class OutcomeUnknown(RequestError):
    """The request was sent, and the controller may have processed it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class Controllers:
    """A queue to the active controller. Owned by the event loop."""

    def __init__(
        self,
        node_id: int,
        leaders: Leaders,
        calls: Calls,
        here: Here | None = None,
        *,
        retry_ms: int = 50,
        try_timeout_ms: int = 30_000,
    ) -> None:
        """`retry_ms`: pause before the same controller is tried again and the leader is looked up.
        `try_timeout_ms` (``controller.socket.timeout.ms``): longest time of one try."""
        self._node_id = node_id
        self._leaders = leaders
        self._calls = calls
        self._here = here
        self._retry_ms = retry_ms
        self._try_timeout_ms = try_timeout_ms
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    def leader_changed(self) -> None:
        """End the pause of a request that waits for a leader: the quorum has another one."""
        self._news.set()

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        """Send the canonical `message` in the newest version of both sides; return the canonical response.
        `inner_key`: API of the request in an Envelope.

        Raises `RequestError` REQUEST_TIMED_OUT without a controller in time, `OutcomeUnknown` (the same code)
        where the controller may have processed the request, and `UnsupportedVersion`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        api = APIS[api_key if inner_key is None else inner_key]
        one = _Request(api_key, message, deadline, api.is_safe_again)
        try:
            async with asyncio.timeout_at(deadline):
                async with self._turn:
                    return await self._send_until_answered(one)
        except TimeoutError:
            if one.may_be_done and not one.is_safe_again:
                raise OutcomeUnknown(f"no controller has answered within {timeout_ms} ms") from None
            why = f"no controller has answered within {timeout_ms} ms"
            raise RequestError(ErrorCode.request_timed_out, why) from None

    async def _send_until_answered(self, one: _Request) -> Any:
        tried: Active | None = None
        while True:
            self._news.clear()
            active = self._leaders.active()
            if active is None or active == tried:
                await self._pause()
                tried = None
                continue
            tried = active
            try:
                answer = await self._try(active, one)
            except OSError as e:
                if one.may_be_done and not one.is_safe_again:
                    raise OutcomeUnknown(f"the controller's answer was lost: {e}") from e
                if was_sent(e):
                    tried = None  # The connection broke: the channel delays the next one.
                continue
            if not is_not_controller(answer):
                return answer
            one.may_be_done = False

    async def _try(self, active: Active, one: _Request) -> Any:
        if active.node_id == self._node_id:
            if self._here is None:
                return _NotController()
            try:
                return await self._here(one.api_key, one.message)
            except RequestError as e:
                if e.code is not ErrorCode.not_controller:
                    raise
                return _NotController()
        left_ms = round((one.deadline - asyncio.get_running_loop().time()) * 1000)
        may_have_been, one.may_be_done = one.may_be_done, True
        call = self._calls.call(
            active.endpoint,
            one.api_key,
            None,
            one.message,
            timeout_ms=max(1, min(left_ms, self._try_timeout_ms)),
        )
        try:
            return await (self._await_while_leader(active, call) if one.is_safe_again else call)
        except OSError as e:
            one.may_be_done = may_have_been or was_sent(e)
            raise

    async def _await_while_leader(self, active: Active, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of `call`; raise `Superseded` as soon as another controller is known.

        The old one may be suspended or cut off, and `call` would wait for it."""
        calling = asyncio.ensure_future(call)
        calling.add_done_callback(retrieve_exception)  # it may time out together with this request
        try:
            while not (await asyncio.wait({calling}, timeout=self._retry_ms / 1000))[0]:
                if self._leaders.active() not in (None, active):
                    raise Superseded(f"node {active.node_id} does not lead any more")
            return calling.result()
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait({calling})

    async def _pause(self) -> None:
        """Wait for news of the leader, at most `retry_ms`."""
        try:
            async with asyncio.timeout(self._retry_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return


class _Request:
    """A request in the queue. `may_be_done`: a controller may have processed it."""

    __slots__ = ("api_key", "deadline", "is_safe_again", "may_be_done", "message")

    def __init__(self, api_key: int, message: Any, deadline: float, is_safe_again: bool) -> None:
        self.api_key = api_key
        self.message = message
        self.deadline = deadline
        self.is_safe_again = is_safe_again
        self.may_be_done = False


class _NotController(NamedTuple):
    """Response of this node while it leads the quorum and its controller is not active."""

    error_code: ErrorCode = ErrorCode.not_controller


def is_not_controller(answer: Any) -> bool:
    """Return whether `answer` says NOT_CONTROLLER, for the whole or for its elements."""
    if getattr(answer, "error_code", ErrorCode.none) == ErrorCode.not_controller:
        return True
    return any(
        getattr(one, "error_code", ErrorCode.none) == ErrorCode.not_controller
        for name in ("topics", "responses", "results", "filter_results", "entries")
        for one in (getattr(answer, name, None) or ())[:_MAX_CHECKED]
    )
