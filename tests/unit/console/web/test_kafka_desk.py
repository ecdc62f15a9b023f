"""The desk's connections: brokers that die, hang, come back, or belong to another cluster."""

from __future__ import annotations

from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.client.admin_models import ClusterInfo, NodeInfo
from service.console.web import kafka_desk
from service.console.web.kafka_desk import KafkaDesk

ALL = ("n1:9092", "n2:9092", "n3:9092")


class Brokers:
    """Three brokers of one cluster: which are down, and which hang."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.hanging: set[str] = set()
        self.ids: dict[str, str] = {}
        self.tried: list[str] = []

    def connect(self, bootstrap: str, *_: object) -> Any:
        self.tried = []
        for address in bootstrap.split(","):
            self.tried.append(address)
            if address not in self.down and address not in self.hanging:
                return Connection(self, address)
        raise ConnectionError(f"cannot connect to {self.tried[-1]}: Connection refused")


class Connection:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers = brokers
        self.first_address = address

    @property
    def hangs(self) -> bool:
        return self.first_address in self._brokers.hanging

    def close(self) -> None:
        """Nothing is open."""

    def describe(self) -> ClusterInfo:
        address = self.first_address
        if address in self._brokers.down:
            raise ConnectionResetError(f"{address} closed the connection")
        if address in self._brokers.hanging:
            raise TimeoutError(f"{address} did not answer in time")
        nodes = tuple(NodeInfo(n, f"n{n}", 9092, None, f"n{n}:9092" in self._brokers.down) for n in (1, 2, 3))
        return ClusterInfo(self._brokers.ids.get(address, "here"), 1, nodes)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()

    class Patched(Connection):
        def __new__(cls, bootstrap: str, *_: object) -> Any:
            return found.connect(bootstrap)

    monkeypatch.setattr(kafka_desk, "Cluster", Patched)
    return found


def desk(bootstrap: str = "n1:9092") -> KafkaDesk:
    return KafkaDesk(bootstrap, ManualClock(), SystemThreads())


def test_a_cluster_is_shown_after_its_only_bootstrap_broker_died(brokers: Brokers) -> None:
    found = desk()
    assert len(found.describe().nodes) == 3
    brokers.down.add("n1:9092")
    assert found.describe().nodes[0].is_fenced
    assert brokers.tried == ["n1:9092", "n2:9092"]
    # Its next connection goes to the broker that answered.
    brokers.down.add("n2:9092")
    found.describe()
    assert brokers.tried == ["n2:9092", "n3:9092"]
    brokers.down = {"n3:9092"}
    found.describe()
    assert set(brokers.tried) <= set(ALL)


def test_a_broker_that_hangs_is_waited_for_once(brokers: Brokers) -> None:
    found = desk()
    found.describe()
    brokers.hanging.add("n1:9092")
    assert len(found.describe().nodes) == 3
    assert brokers.tried == ["n2:9092"]


def test_a_broker_is_not_passed_over_for_what_others_do_not_answer(brokers: Brokers) -> None:
    """Another broker hangs, which was asked through this one; or no controller answers it."""
    found = desk()
    found.describe()

    def of_another(cluster: Any) -> None:
        raise TimeoutError("n2:9092 did not answer in time")

    with pytest.raises(TimeoutError):
        found.ask(of_another)
    found.describe()
    assert brokers.tried == ["n1:9092"]
    brokers.hanging.add("n1:9092")  # as it looks while it waits for a controller
    with pytest.raises(TimeoutError):
        found.ask(of_another, is_for_controllers=True)
    brokers.hanging.clear()
    found.describe()
    assert brokers.tried == ["n1:9092"]


def test_an_address_of_another_cluster_is_not_shown_as_this_one(brokers: Brokers) -> None:
    found = desk()
    found.describe()
    brokers.down = {"n1:9092"}
    brokers.ids = {"n2:9092": "another"}
    assert found.describe().cluster_id == "here"
    assert brokers.tried[-1] == "n3:9092"


def test_a_cluster_that_is_away_is_named_with_the_number_of_its_brokers(brokers: Brokers) -> None:
    found = desk()
    brokers.down = set(ALL)
    with pytest.raises(StorageError, match=r"^cannot connect to n1:9092: Connection refused$"):
        found.describe()
    brokers.down = set()
    found = desk()
    found.describe()
    brokers.down = set(ALL)
    with pytest.raises(StorageError, match="none of 3 brokers answers; the last error: cannot connect to"):
        found.describe()
