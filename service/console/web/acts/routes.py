"""Addresses of acts: forms by GET, previews and confirmations by POST, results by GET.

A POST is taken of a page of this console alone: its origin is checked, then the session, then the token of
the form, which is bound to the session. Bodies are limited before they are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response

from service.base.errors import ConfigError, RequestError
from service.base.printable import escaped
from service.base.rate_limited_log import RateLimitedLog
from service.base.world import World
from service.console.web.acts import audit, group_acts, page, record_acts, setting_acts, topic_acts
from service.console.web.acts.act import ActForm, is_confirmed
from service.console.web.acts.change_desk import TROUBLE, ChangeDesk, TooManyActs, error_words
from service.console.web.acts.origins import is_own_form
from service.console.web.frame import PageContext
from service.console.web.guard import Guard
from service.console.web.kafka_desk import KafkaDesk

_log = logging.getLogger(__name__)

FORMS: Final = (*topic_acts.FORMS, *setting_acts.FORMS, *group_acts.FORMS, *record_acts.FORMS)
HEADERS: Final = {"Referrer-Policy": "same-origin"}
"""Browsers tell the origin of a form only where a page lets them tell it, here to this console alone."""
BODY_S: Final = 10.0
_KIND: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 16
_PIECE: Final = 64 << 10
_UNCARRIED: Final = frozenset("\0\r\n")
_CONFIRM_BYTES: Final = 8 << 10


class _Refused(Exception):
    """A request that is answered with `status` and these words, and has no other effect."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class ActRoutes:
    """Acts of one console, as its server asks for them. Owned by the event loop."""

    def __init__(self, kafka: KafkaDesk, world: World, guard: Guard, *, is_sealed: bool) -> None:
        self._guard = guard
        self._is_sealed = is_sealed
        self._desk = ChangeDesk(kafka, world)
        self._forms = {page.path_of(form): form for form in FORMS}
        self._warnings = RateLimitedLog(_log, now=asyncio.get_running_loop().time)
        self.pages: Final = frozenset(self._forms)
        self.paths: Final = self.pages | {page.CONFIRM, page.RESULT}

    def close(self) -> None:
        self._desk.close()

    def forget(self, secret: str) -> None:
        """Drop the previews of a session that ends."""
        self._desk.forget(self._guard.session_name(secret))

    def is_foreign(self, request: BaseRequest) -> bool:
        """Return whether a POST comes from elsewhere than a page of this console."""
        if is_own_form(request.headers, is_sealed=self._is_sealed):
            return False
        self._warnings.warning("%s: a form of another site, or of none, is not taken", request.remote)
        return True

    async def answer(self, request: BaseRequest, context: PageContext, secret: str) -> Response:
        """Answer a request of the session with this secret."""
        try:
            if request.method == "POST":
                return await self._post(request, context, secret)
            return self._get(request, context, secret)
        except _Refused as e:
            response = _html(page.render_refusal(context, str(e)), e.status)
            if e.status == 405:
                response.headers["Allow"] = "POST" if request.path == page.CONFIRM else "GET, HEAD"
            return response
        except TooManyActs as e:
            why = f"there are many acts at the moment. Try again in {e.wait_s} s."
            response = _html(page.render_refusal(context, why), 429)
            response.headers["Retry-After"] = str(e.wait_s)
            return response

    def _get(self, request: BaseRequest, context: PageContext, secret: str) -> Response:
        token = self._guard.form_token(secret)
        form = self._forms.get(request.path)
        if form is not None:
            values = {one.name: request.query.get(one.name, "")[: one.most] for one in form.fields}
            problem = _drop_uncarried(form, values)
            return _html(page.render_form(context, form, values, token, problem))
        if request.path == page.CONFIRM:
            raise _Refused(405, "this address takes forms alone.")
        name = self._guard.session_name(secret)
        plan = self._desk.find(request.query.get("id", ""), name)
        if plan is None:
            return _html(page.render_gone(context), 404)
        newer = self._desk.find(plan.successor, name) if plan.successor is not None else None
        return _html(page.render_result(context, plan, newer, token))

    async def _post(self, request: BaseRequest, context: PageContext, secret: str) -> Response:
        form = self._forms.get(request.path)
        if form is None and request.path != page.CONFIRM:
            raise _Refused(405, "this address takes no form.")
        values = await _form_of(request, _CONFIRM_BYTES if form is None else form.most_bytes)
        if not self._guard.admits_form(secret, values.pop("csrf", "")):
            raise _Refused(403, "the form is of another session. Open it again.")
        if form is None:
            return await self._confirm(request, context, secret, values)
        return await self._preview(context, secret, form, values)

    async def _preview(
        self, context: PageContext, secret: str, form: ActForm, values: Mapping[str, str]
    ) -> Response:
        token = self._guard.form_token(secret)
        try:
            _check_fields(form, values)
            # A large value takes a while to be checked, as a large form to be read: not on the loop.
            making = partial(form.make, values, self._desk.act_world)
            act = await asyncio.get_running_loop().run_in_executor(None, making)
            plan = await self._desk.preview(form, act, self._guard.session_name(secret))
        except TROUBLE as e:
            status = 400 if isinstance(e, ConfigError | RequestError) else 503
            return _html(page.render_form(context, form, values, token, error_words(e)), status)
        return _html(page.render_preview(context, plan, token))

    async def _confirm(
        self, request: BaseRequest, context: PageContext, secret: str, values: Mapping[str, str]
    ) -> Response:
        session = self._guard.session_name(secret)
        plan = self._desk.find(values.get("plan", ""), session)
        if plan is None:
            return _html(page.render_gone(context), 404)
        if plan.act is not None and not is_confirmed(values.get("typed", ""), plan.preview.word):
            problem = "What was typed is not what stands there."
            token = self._guard.form_token(secret)
            return _html(page.render_preview(context, plan, token, problem), 400)
        await self._desk.carry_out(plan, audit.SignedIn(session, request.remote or "?"))
        return Response(status=303, headers={"Location": f"{page.RESULT}?id={plan.plan_id}", **HEADERS})


async def _form_of(request: BaseRequest, most: int) -> dict[str, str]:
    """Read a form of `most` bytes at most."""
    size = request.content_length
    if request.content_type != _KIND or (request.charset or "utf-8").lower() != "utf-8":
        raise _Refused(415, "it is not a form of this console.")
    if size is None:
        raise _Refused(411, "the form does not say how large it is.")
    if size > most:
        raise _Refused(413, f"a form of {size:,} bytes is too large here, where {most:,} are taken.")
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.content.readexactly(size)
    except TimeoutError:
        raise _Refused(408, "the form did not come in time.") from None
    except asyncio.IncompleteReadError:
        raise _Refused(400, "the form is cut off.") from None
    try:
        return await asyncio.get_running_loop().run_in_executor(None, parsed_form, body)
    except ValueError:
        raise _Refused(400, "the form cannot be read.") from None


def parsed_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form's body. Raises `ValueError`, also for a field that is there twice."""
    parts = body.decode("ascii").split("&", _MOST_FIELDS)
    if len(parts) > _MOST_FIELDS:
        raise ValueError("there are many fields")
    found: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError("a field has no value")
        if (key := _decoded(name)) in found:
            raise ValueError("a field is there twice")
        found[key] = _decoded(value)
    return found


def _decoded(written: str) -> str:
    """Return a text of a form; in pieces, as each holds the interpreter. Raises `ValueError`."""
    pieces, at = [], 0
    while at < len(written):
        end = at + _PIECE
        if (escape := written.rfind("%", end - 2, end)) > at:
            end = escape  # it goes on in the next piece
        pieces.append(unquote_to_bytes(written[at:end].replace("+", " ")))
        at = end
    return b"".join(pieces).decode()


def _check_fields(form: ActForm, values: Mapping[str, str]) -> None:
    known = {one.name: one for one in form.fields}
    for name, value in values.items():
        one = known.get(name)
        if one is None:
            raise ConfigError("The form has a field that is not of it")
        if len(value) > one.most:
            raise ConfigError(f"{one.label}: {len(value):,} characters are too many, {one.most:,} are taken")


def _drop_uncarried(form: ActForm, values: dict[str, str]) -> str | None:
    """Empty the fields whose text a browser would not send back as it is; return words about the last one.

    A line end would be left out, and another thing be meant: the group `a` where `a\\n` was looked at.
    """
    words = None
    for one in form.fields:
        if one.kind != "lines" and not _UNCARRIED.isdisjoint(values[one.name]):
            shown = escaped(values[one.name])
            words = f"{one.label}: a browser's form cannot carry {shown}. The command firn does."
            values[one.name] = ""
    return words


def _html(text: str, status: int = 200) -> Response:
    return Response(status=status, text=text, content_type="text/html", headers=HEADERS)
