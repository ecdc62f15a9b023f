"""Conditional writes, on every store: who wins, what a lost answer is, how a careless store is found."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.remote.stores import conditional
from service.remote.stores.errors import (
    AccessRefused,
    CredentialsMissing,
    ObjectNotFound,
    PreconditionFailed,
    RequestUnknown,
    StoreRefused,
    StoreUnavailable,
)
from service.remote.stores.memory_store import MemoryStore
from tests.contract.backends import Backend


def test_an_object_is_replaced_only_while_it_is_the_one_that_was_read(backend: Backend) -> None:
    backend.store.put("a/HEAD", b"first")
    first = backend.store.get_tagged("a/HEAD", max_size=100)
    assert first.data == b"first"
    backend.store.put_if_match("a/HEAD", b"second", first.tag)
    with pytest.raises(PreconditionFailed):
        backend.store.put_if_match("a/HEAD", b"third", first.tag)
    assert backend.store.get("a/HEAD", max_size=100) == b"second"
    second = backend.store.get_tagged("a/HEAD", max_size=100)
    backend.store.put_if_match("a/HEAD", b"third", second.tag)
    assert backend.store.get("a/HEAD", max_size=100) == b"third"


def test_an_object_that_is_gone_is_not_replaced(backend: Backend) -> None:
    backend.store.put("k", b"first")
    tag = backend.store.get_tagged("k", max_size=100).tag
    backend.store.delete(["k"])
    with pytest.raises(PreconditionFailed):
        backend.store.put_if_match("k", b"second", tag)
    with pytest.raises(ObjectNotFound):
        backend.store.get("k", max_size=100)


def test_one_of_concurrent_replacements_of_an_object_wins(backend: Backend) -> None:
    backend.store.put("race", b"nobody")
    tag = backend.store.get_tagged("race", max_size=100).tag
    won: list[int] = []
    barrier = threading.Barrier(6)

    def race(number: int) -> None:
        barrier.wait()
        if conditional.replace(backend.store, "race", str(number).encode(), tag):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert backend.store.get("race", max_size=10) == str(won[0]).encode()


def test_the_probe_trusts_a_store_that_keeps_its_word_and_leaves_nothing_behind(backend: Backend) -> None:
    assert conditional.probe(backend.store, uuid4) is None
    assert list(backend.store.list("")) == []


class Careless(MemoryStore):
    """Writes whatever the condition says."""

    def __init__(self, *ignored: str) -> None:
        super().__init__(SystemThreads())
        self._ignored = ignored

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        if "absent" not in self._ignored:
            return super().put_if_absent(key, data)
        self.put(key, data)
        return True

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        if "match" not in self._ignored:
            return super().put_if_match(key, data, tag)
        return self.put(key, data)


@pytest.mark.parametrize("ignored", ["absent", "match"])
def test_the_probe_finds_a_store_out_that_ignores_conditions(ignored: str) -> None:
    store = Careless(ignored)
    assert "replaces an object" in (conditional.probe(store, uuid4) or "")
    assert list(store.list("")) == []


class Refusing(MemoryStore):
    """Lets objects be made, and none be replaced."""

    def __init__(self, error: StoreRefused) -> None:
        super().__init__(SystemThreads())
        self._error = error

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        raise self._error


def test_a_refusal_describes_the_store_unless_it_concerns_the_caller() -> None:
    found = conditional.probe(Refusing(RequestUnknown("501 NotImplemented")), uuid4)
    assert found == "it refuses them: 501 NotImplemented"
    for passing in (
        AccessRefused("403 AccessDenied"),
        CredentialsMissing("no role yet"),
        StoreRefused("a disabled key"),
    ):
        store = Refusing(passing)
        with pytest.raises(type(passing)):
            conditional.probe(store, uuid4)
        assert list(store.list("")) == []


class Doubtful(MemoryStore):
    """Loses the answer to one replacement, and damages what it reads back of that."""

    def __init__(self, times: int) -> None:
        super().__init__(SystemThreads())
        self.left = times
        self.keys: set[str] = set()
        self._damages = ""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        super().put_if_match(key, data, tag)
        self.keys.add(key)
        if self.left:
            self.left -= 1
            self._damages = key
            raise PreconditionFailed("of the second try, whose first one was done")

    def get(self, key: str, *, max_size: int) -> bytes:
        data = super().get(key, max_size=max_size)
        return b"?" * len(data) if key == self._damages else data


@pytest.mark.parametrize("times", [1, 2])
def test_one_doubtful_answer_is_no_verdict_on_the_store(times: int) -> None:
    store = Doubtful(times)
    assert conditional.probe(store, uuid4) is None
    assert len(store.keys) == times + 1, "each time a fresh object"
    assert list(store.list("")) == []


class Lossy(MemoryStore):
    """Does what it is asked, and says that it is away."""

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        super().put_if_absent(key, data)
        raise StoreUnavailable(f"{key}: timed out")

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        super().put_if_match(key, data, tag)
        raise StoreUnavailable(f"{key}: timed out")


def test_a_write_whose_answer_was_lost_is_recognised() -> None:
    store = Lossy(SystemThreads())
    assert conditional.create(store, "k", b"mine")
    assert conditional.replace(store, "k", b"still mine", store.get_tagged("k", max_size=100).tag)
    # Asked again by a client below, it finds its own object in the way.
    assert conditional.replace(store, "k", b"still mine", "an older tag")
    with pytest.raises(PreconditionFailed):
        MemoryStore.put_if_match(store, "k", b"somebody else's", "an older tag")
    assert not conditional.replace(store, "k", b"somebody else's", "an older tag")
