"""Requests of one connection that a handler takes several of at once (`request.RunHandler`).

Their responses are sent together. Each counts as a request of its own that has held the loop for its share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from service.base.turns import NOTICED_S
from service.network.request import PeerContext, RequestContext, RunHandler
from service.network.request_framer import RequestFramer
from service.network.sender import ResponseSender
from service.network.shared import Shared
from service.wire.frames import SIZE_BYTES


class EndedRun(NamedTuple):
    """Number of the requests that were answered, and the time of the end."""

    requests: int
    ended_s: float


class RunOwner(Protocol):
    """The pipeline of a connection, as its runs use it."""

    sender: ResponseSender
    context: PeerContext
    on_failed: Callable[[], None] | None


def answer_run(
    runs: RunHandler,
    shared: Shared,
    framer: RequestFramer,
    owner: RunOwner,
    began_s: float,
) -> EndedRun | None:
    """Answer the requests at hand that `runs` takes; None if it does not take the first. The state of
    `framer` is then READING, or ANSWERING while not all is sent."""
    found, context = framer.whole_input(), owner.context
    if found is None or not isinstance(context, RequestContext):
        return None
    run = runs(context, *found)
    if run is None:
        return None
    context.hurry = context.meter = None
    context.cancel_on_disconnect = context.ends_with_peer = False
    framer.took(run.stop, run.requests)
    owner.on_failed = run.on_failed
    if owner.sender.send(run.answers):
        framer.answered()
    else:
        framer.answering()
    api = shared.counters.apis.get(context.api_key) or shared.counters.of(context.api_key)
    api.sent_bytes += run.size
    api.received_bytes += run.stop - found[1] - SIZE_BYTES * run.requests
    ended_s = shared.now()
    api.note_run(run.requests, began_s - shared.turns.began, ended_s - began_s)
    if ended_s - began_s > NOTICED_S:
        shared.turns.note_holder(ended_s - began_s, shared.describe(context, None))
    return EndedRun(run.requests, ended_s)
