"""The catalog of `world` decided by the controller's own rules, and reached over an unkind network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client.controller_channel import Active, Controllers
from service.controller_client.remote_log_catalog import (
    Registration,
    RpcCatalog,
    commits_of,
    error_response,
    response_of,
)
from service.controller_client.rewrite_messages import (
    answer_numbers,
    erased_of,
    erasures_of,
    rewrites_of,
    started_of,
)
from service.metadata.controller.catalog_control import commit_catalog
from service.metadata.controller.requests import CatalogSender, Endpoint
from service.metadata.records import RemoteLogRecord, RemoveRewriteRecord
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, RewriteAnswer
from service.remote.stores.errors import StoreUnavailable
from service.wire.api import (
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    response_frame,
)
from service.wire.catalog import CommitCatalogRequest, OrderOp
from tests.unit.tiering.world import CatalogView, MemoryCatalog, faulty

BROKER = Registration(1, 10)


class ImageCatalog(MemoryCatalog):
    """Each commit is decided on a metadata image, and its record is read for what the image says then."""

    async def commit_from(
        self, sender: CatalogSender, commits: Sequence[CatalogCommit]
    ) -> list[CatalogResult]:
        """Commit for a broker. Raises `RequestError` STALE_BROKER_EPOCH."""
        await asyncio.sleep(0)
        with faulty(self.decide("commit", str(commits[0].tip)), "commit"):
            return [self._commit(one, sender) for one in commits]

    def _commit(self, one: CatalogCommit, sender: CatalogSender | None = None) -> CatalogResult:
        decision = commit_catalog(self.image_now(), [one], sender=sender)
        for frame in decision.frames:
            record = frame.record
            if isinstance(record, RemoveRewriteRecord):
                self.read(record)
                continue
            assert isinstance(record, RemoteLogRecord)
            assert record.topic_id is not None
            values = {name: getattr(record, name) for name in CatalogEntry._fields}
            self.entries[record.topic_id, record.partition_id] = CatalogEntry(**values)
            self.history.append(one)
        [result] = decision.response
        return result


def told(catalog: MemoryCatalog, request: CommitCatalogRequest, sender: CatalogSender) -> list[RewriteAnswer]:
    """Decide what a request tells of rewrites and erasures. Raises `RequestError`."""
    rewrites, notes = rewrites_of(request, lambda topic_id: "events"), erased_of(request)
    answers = catalog.decide_rewrites(rewrites, sender) if rewrites else []
    if notes:
        catalog.decide_notes(notes, sender)
    for change in erasures_of(request):
        erasure_id = change.id or UUID(int=0)
        if change.op == OrderOp.STARTED:
            catalog.decide_start(started_of(change), sender)
        elif change.op == OrderOp.DONE:
            catalog.decide_finish(erasure_id, change.done_ms, sender)
        else:
            catalog.decide_remove(erasure_id, sender)
    return answers


class Wire:
    """CommitCatalog from a broker to the controller, as bytes: lost on either way, doubled, late, refused."""

    def __init__(self, catalog: MemoryCatalog, random: Random) -> None:
        self.catalog = catalog
        self.fault_share = 0.0
        self.served = 0
        self._random = random
        self._late: list[bytes] = []

    async def call(
        self, endpoint: Any, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        frame = encode_request(api_key, version or 0, 7, "broker", message)[4:]
        if self._happens():
            raise ConnectionRefusedError("nobody listens")
        if self._happens():
            self._late.append(frame)
            raise ConnectionResetError("sent, and the connection was lost")
        await self.deliver()
        try:
            answer = await self.serve(frame)
            while self._happens():
                answer = await self.serve(frame)
        except StoreUnavailable as e:
            raise ConnectionResetError(f"the answer was lost: {e}") from e
        if self._happens():
            raise ConnectionResetError("the answer was lost")
        if self._happens():
            self._late.append(frame)  # once more, after whatever comes next
        return decode_response(api_key, 0, answer)[1]

    def _happens(self) -> bool:
        return self._random.random() < self.fault_share

    async def deliver(self) -> None:
        """Requests that were on their way for long arrive; nobody hears what is said to them."""
        late, self._late = self._late, []
        self._random.shuffle(late)
        for frame in late:
            try:
                await self.serve(frame)
            except StoreUnavailable:
                continue

    async def serve(self, frame: bytes) -> memoryview:
        """The controller's side."""
        self.served += 1
        header = parse_request_header(frame)
        request = decode_request(header, frame)
        if self._happens():
            answer = error_response(ErrorCode.not_controller)
        else:
            sender = CatalogSender(request.broker_id, request.broker_epoch)
            try:
                commits = commits_of(request, lambda topic_id: "events")
                results = await self._decide(sender, commits) if commits else []
                for topic_id in request.forgotten_topics:
                    self.catalog.buried.pop(topic_id, None)
                answers = told(self.catalog, request, sender)
                answer = replace(response_of(results, 5), rewrite_answers=answer_numbers(answers))
            except RequestError as e:
                answer = error_response(e.code, e.message)
        return memoryview(response_frame(header, answer))[4:]

    async def _decide(self, sender: CatalogSender, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        if isinstance(self.catalog, ImageCatalog):
            return await self.catalog.commit_from(sender, commits)
        return await self.catalog.commit(commits)


class Reached:
    """A node's image that has everything, but for what `view` lags."""

    def __init__(self, view: CatalogView) -> None:
        self.view = view
        self.entry = view.entry
        self.tombstones = view.tombstones
        self.rewrite = view.rewrite
        self.erasures = view.erasures
        self.erased = view.erased
        self.reached_offsets: list[int] = []

    async def reached(self, offset: int) -> None:
        self.reached_offsets.append(offset)


class Quorum:
    def active(self) -> Active | None:
        return Active(9, 1, Endpoint("CONTROLLER", "controller", 9093))


def rpc_catalog(
    view: CatalogView, wire: Wire, registration: Registration = BROKER, *, timeout_ms: int = 2_000
) -> RpcCatalog:
    """The catalog of a broker behind `wire`."""
    controllers = Controllers(registration.broker_id, Quorum(), wire, retry_ms=1)
    return RpcCatalog(controllers, Reached(view), lambda: registration, timeout_ms=timeout_ms)


def by_rpc(view: CatalogView, wire: Wire, registration: Registration = BROKER) -> None:
    """Let `view` commit through `wire` from now on."""
    catalog = rpc_catalog(view, wire, registration)

    async def commit(commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        return await catalog.commit(commits)

    view.commit = commit  # type: ignore[method-assign]
    for name in ("forget_topics", *_CHANGES):
        setattr(view, name, getattr(catalog, name))


_CHANGES = (
    "begin_rewrite",
    "give_up_rewrite",
    "note_erased",
    "start_erasure",
    "finish_erasure",
    "remove_erasure",
)
"""Methods of a node's catalog that change rewrites and erasures."""
