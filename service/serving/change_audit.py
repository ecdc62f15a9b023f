"""Decorator of handlers whose requests change the cluster: an answered request is told in the audit log.

A request that is forwarded is told where it is decided, with its client's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from service.network.request import RequestContext
from service.security.change_audit import Requester, tell
from service.serving.change_words import Words

Handler = Callable[[Any, RequestContext, Any], Any]


def audited(words: Words) -> Callable[[Handler], Handler]:
    """Tell what `words` finds in request and response of the decorated handler."""

    def decorated(handle: Handler) -> Handler:
        @wraps(handle)
        async def handled(host: Any, context: RequestContext, request: Any) -> Any:
            # Before the handler: the next request overwrites the context.
            asker = Requester.of(context.session, context.client_id)
            response = handle(host, context, request)
            if isinstance(response, Awaitable):
                response = await response
            for change in words(request, response):
                tell(change, asker)
            return response

        return handled

    return decorated
