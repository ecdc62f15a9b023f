"""Any sequence of changes to ACLs, credentials and quotas: decisions say what replay, snapshots and
differences say, and what a plain model of Kafka's rules says."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.controller.acl_control import create_acls, delete_acls
from service.metadata.controller.acl_filters import AclFilter, matches
from service.metadata.controller.quota_control import QuotaAlteration, alter_client_quotas
from service.metadata.controller.scram_control import (
    DeleteCredential,
    UpsertCredential,
    alter_scram_credentials,
)
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.publication import apply_batch
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.security.acls import AclEntry


def mostly(*usual: Any, rarely: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from([*usual * (1 + 6 * len(rarely) // len(usual)), *rarely])


names = st.sampled_from(["a", "ab", "*"])
users = mostly("alice", "bob", rarely=("",))
entries = st.builds(
    AclEntry,
    mostly(2, 3, rarely=(1,)),
    mostly("a", "ab", "*", rarely=("",)),
    mostly(3, 4, rarely=(2,)),
    mostly("User:a", "User:*", rarely=("nobody",)),
    st.sampled_from(["*", "h"]),
    mostly(2, 3, rarely=(1,)),
    mostly(2, 3, rarely=(1,)),
)
filters = st.builds(
    AclFilter,
    mostly(1, 2, 3, rarely=(0,)),
    st.none() | names,
    st.integers(1, 4),
    st.none() | st.just("User:a"),
    st.none() | st.just("*"),
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([1, 1, 2, 3]),
)
deletions = st.builds(DeleteCredential, users, mostly(1, 2, rarely=(0,)))
upsertions = st.builds(
    UpsertCredential,
    users,
    mostly(1, 2, rarely=(3,)),
    mostly(4096, 8192, rarely=(4095,)),
    st.just(b"salt"),
    st.sampled_from([b"one", b"two"]),
)
parts = mostly(
    (("user", "a"),),
    (("user", None),),
    (("client-id", "a"), ("user", "a")),
    (("user", "a"), ("client-id", None)),
    (("ip", "::1"),),
    rarely=((), (("user", ""),), (("ip", "a"),), (("ip", "::1"), ("user", "a"))),
)
changes = st.lists(
    st.tuples(
        mostly("producer_byte_rate", "request_percentage", rarely=("connection_creation_rate",)),
        mostly(None, 1.0, 2.0, rarely=(0.0, 1.5)),
    ),
    max_size=3,
).map(tuple)
of_an_address = mostly(1.0, None, rarely=(1.5,)).map(lambda one: (("connection_creation_rate", one),))
alterations = st.builds(QuotaAlteration, parts, changes) | st.builds(
    QuotaAlteration, st.just((("ip", "::1"),)), of_an_address
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.lists(entries, min_size=1, max_size=5)),
        st.tuples(st.just("delete"), st.lists(filters, min_size=1, max_size=3)),
        st.tuples(st.just("scram"), st.lists(deletions, max_size=2), st.lists(upsertions, max_size=3)),
        st.tuples(st.just("quotas"), st.lists(alterations, min_size=1, max_size=4)),
        st.tuples(st.just("delete one credential"), st.integers(0, 3)),
        st.tuples(st.just("delete one quota"), st.integers(0, 3)),
    ),
    min_size=8,
    max_size=25,
)
PARTS = ("acls", "scram", "client_quotas")


class Model:
    """What there should be, changed by the answers alone."""

    def __init__(self) -> None:
        self.entries: set[AclEntry] = set()
        self.credentials: dict[tuple[str, int], tuple[int, bytes]] = {}
        self.quotas: dict[frozenset[tuple[str, str | None]], dict[str, float]] = {}

    def answered(self, step: tuple[Any, ...], answer: list[Any]) -> None:
        match step:
            case ("create", asked):
                made = {entry for entry, one in zip(asked, answer, strict=True) if not one.error.value}
                self.entries |= made
            case ("delete", asked):
                gone = {entry for one in answer for entry in one.deleted}
                wanted = [
                    one for one, result in zip(asked, answer, strict=True) if result.error is ErrorCode.none
                ]
                assert gone == {entry for entry in self.entries if any(matches(one, entry) for one in wanted)}
                self.entries -= gone
            case ("scram", removed, added):
                done = {one.user for one in answer if one.error is ErrorCode.none}
                for one in removed:
                    if one.user in done:
                        del self.credentials[one]
                for one in added:
                    if one.user in done:
                        self.credentials[one.user, one.mechanism] = (one.iterations, one.salted_password)
            case ("quotas", asked):
                self._altered(asked, answer)

    def _altered(self, asked: list[QuotaAlteration], answer: list[Any]) -> None:
        results = {frozenset(one.parts): one for one in answer}
        seen: set[frozenset[tuple[str, str | None]]] = set()
        for one in asked:
            entity = frozenset(dict(one.parts).items())
            is_first = entity not in seen
            seen.add(entity)
            result = results[entity]
            is_made = result.error is ErrorCode.none or "duplicate entity" in result.message
            if not is_first or not is_made or not self._valid(one):
                continue
            values = self.quotas.setdefault(entity, {})
            for key, value in one.changes:
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            if not values:
                del self.quotas[entity]

    @staticmethod
    def _valid(one: QuotaAlteration) -> bool:
        """Whether the first of several alterations of one entity was made: the answer is of the last."""
        kinds = dict(one.parts)
        if not kinds or "" in kinds.values() or ("ip" in kinds and len(kinds) > 1):
            return False
        if kinds.get("ip") == "a" or len(dict(one.changes)) < len(one.changes):
            return False
        allowed = {"producer_byte_rate", "request_percentage"}
        if "ip" in kinds:
            allowed = {"connection_creation_rate"}
        return all(
            value is None
            or (key in allowed and value > 0 and (key == "request_percentage" or value == int(value)))
            for key, value in one.changes
        )

    def check(self, image: MetadataImage) -> None:
        found = list(image.acls.entries.values())
        assert len(found) == len(self.entries)
        assert set(found) == self.entries
        assert {
            (user, mechanism): one.iterations
            for user, of_user in image.scram.items()
            for mechanism, one in of_user.items()
        } == {key: iterations for key, (iterations, _) in self.credentials.items()}
        assert {
            frozenset(entity.parts): dict(values) for entity, values in image.client_quotas.items()
        } == self.quotas
        assert all(image.scram.values()), "no user without a credential"
        assert all(image.client_quotas.values()), "no entity without a quota"


class History:
    """Decisions applied one after another."""

    def __init__(self, script: list[tuple[Any, ...]]) -> None:
        self.images = [MetadataImage()]
        self.batches: list[tuple[Frame, ...]] = []
        self.model = Model()
        ids = (UUID(int=number << 100) for number in count(1))
        for asked in script:
            image = self.images[-1]
            step = self._existing(image, asked)
            decision = at_once(self._decide(image, step, ids.__next__))
            if decision.frames:
                delta = MetadataDelta(image).replay_all(one.record for one in decision.frames)
                self.images.append(delta.build(image.offset + len(decision.frames), 1, 1000))
                self.batches.append(decision.frames)
            self.model.answered(step, decision.response)
            self.model.check(self.images[-1])

    @staticmethod
    def _existing(image: MetadataImage, step: tuple[Any, ...]) -> tuple[Any, ...]:
        """Name what is there in a step that deletes one of it."""
        match step:
            case ("delete one credential", number):
                known = sorted((user, kind) for user, of_user in image.scram.items() for kind in of_user)
                return "scram", [DeleteCredential(*one) for one in known[number : number + 1]], []
            case ("delete one quota", number):
                found = sorted((repr(one), one, key) for one, of in image.client_quotas.items() for key in of)
                some = found[number : number + 1]
                return "quotas", [QuotaAlteration(tuple(one.parts), ((key, None),)) for _, one, key in some]
        return step

    @staticmethod
    def _decide(image: MetadataImage, step: tuple[Any, ...], new_uuid: Any) -> Any:
        match step:
            case ("create", asked):
                return create_acls(image, asked, new_uuid=new_uuid)
            case ("delete", asked):
                return delete_acls(image, asked)
            case ("scram", removed, added):
                return alter_scram_credentials(image, removed, added)
            case (_, asked):
                return alter_client_quotas(image, asked)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_decisions_and_replay_say_what_the_answers_say(script: list[tuple[Any, ...]]) -> None:
    history = History(script)
    image = MetadataImage()
    for number, frames in enumerate(history.batches):
        base = history.images[number].offset + 1
        (batch,) = decode_batches(encode_batch(frames, base_offset=base, epoch=1, timestamp_ms=1000))
        image, _ = apply_batch(image, batch)
        assert image == history.images[number + 1]


@settings(max_examples=100, deadline=None)
@given(steps)
def test_a_snapshot_of_any_moment_says_the_same(script: list[tuple[Any, ...]]) -> None:
    for image in History(script).images[1:]:
        data = list(encode_image(image, now_ms=7))
        found = decode_snapshot(data, end_offset=image.offset + 1, epoch=1)
        assert found == image
        assert list(encode_image(found, now_ms=7)) == data, "equal images have equal bytes"


@settings(max_examples=60, deadline=None)
@given(steps, st.data())
def test_the_difference_of_any_two_moments_leads_from_one_to_the_other(
    script: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    images = History(script).images
    before, after = (images[data.draw(st.integers(0, len(images) - 1))] for _ in range(2))
    found, delta = at_once(apply_snapshot(before, after))
    assert found == after
    for part in PARTS:
        is_equal = getattr(before, part) == getattr(after, part)
        assert (getattr(found, part) is getattr(before, part)) == is_equal
    users = {*before.scram, *after.scram}
    assert {one for one in users if before.scram.get(one) != after.scram.get(one)} <= set(delta.users)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_part_is_another_object_exactly_after_a_change_to_it(script: list[tuple[Any, ...]]) -> None:
    for before, after in pairwise(History(script).images):
        for part in PARTS:
            one, other = getattr(before, part), getattr(after, part)
            assert (one is other) == (one == other)
