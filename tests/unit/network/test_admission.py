"""Limits of open connections: of all, of a listener, and of the listener of brokers."""

from __future__ import annotations

from service.network.admission import Admission


class Door:
    """A listener."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.is_shut = False

    def shut(self) -> None:
        assert not self.is_shut
        self.is_shut = True

    def open(self) -> None:
        assert self.is_shut
        self.is_shut = False


class House:
    """Two listeners, and who is admitted late."""

    def __init__(self, most: int, of: dict[str, int] | None = None, protected: str = "") -> None:
        self.most = most
        self.of = of or {}
        self.inside, self.outside = Door("INSIDE"), Door("OUTSIDE")
        self.late: list[str] = []
        self.admission = Admission(lambda: self.most, lambda name: self.of.get(name, 1000), protected)
        for door in (self.inside, self.outside):
            self.admission.watch(door)

    def enter(self, listener: str, name: str = "") -> bool:
        return self.admission.enter(listener, lambda: self.late.append(name))

    @property
    def shut(self) -> tuple[bool, bool]:
        return self.inside.is_shut, self.outside.is_shut


def test_all_listeners_stop_at_the_limit_and_go_on_below_it() -> None:
    house = House(2)
    assert house.enter("INSIDE")
    assert house.shut == (False, False)
    assert house.enter("OUTSIDE")
    assert house.shut == (True, True)
    assert not house.enter("OUTSIDE", "third")
    house.admission.leave("INSIDE")
    assert (house.late, house.shut, house.admission.count) == (["third"], (True, True), 2)
    house.admission.leave("OUTSIDE")
    assert house.shut == (False, False)


def test_a_listener_has_a_limit_of_its_own() -> None:
    house = House(10, {"OUTSIDE": 1})
    assert house.enter("OUTSIDE")
    assert house.shut == (False, True)
    assert not house.enter("OUTSIDE", "waits")
    assert house.enter("INSIDE")
    house.admission.leave("INSIDE")
    assert house.late == [], "a place at another listener is none"
    house.admission.leave("OUTSIDE")
    assert (house.late, house.shut) == (["waits"], (False, True))


def test_a_protected_listener_is_exempt_from_the_limit_of_all() -> None:
    house = House(1, {"INSIDE": 2}, protected="INSIDE")
    assert house.enter("OUTSIDE")
    assert house.shut == (False, True)
    assert house.enter("INSIDE")
    assert house.enter("INSIDE")
    assert house.shut == (True, True), "its own limit holds"
    assert not house.enter("OUTSIDE", "client")
    house.admission.leave("OUTSIDE")
    assert house.late == [], "brokers have taken the place"
    house.admission.leave("INSIDE")
    house.admission.leave("INSIDE")
    assert house.late == ["client"]


def test_a_limit_that_rises_admits_those_who_wait_in_order() -> None:
    house = House(1)
    assert house.enter("OUTSIDE")
    for name in ("a", "b", "c"):
        assert not house.enter("OUTSIDE", name)
    house.most = 3
    house.admission.reconsider()
    assert (house.late, house.shut) == (["a", "b"], (True, True))
    house.most = 9
    house.admission.reconsider()
    assert (house.late, house.shut) == (["a", "b", "c"], (False, False))


def test_a_limit_that_falls_shuts_the_doors() -> None:
    house = House(5)
    for _ in range(3):
        assert house.enter("OUTSIDE")
    house.most = 2
    house.admission.reconsider()
    assert house.shut == (True, True)
    house.admission.leave("OUTSIDE")
    assert not house.enter("OUTSIDE", "waits")
    house.admission.leave("OUTSIDE")
    assert house.late == ["waits"]


def test_one_that_has_left_while_it_waited_is_not_admitted() -> None:
    house = House(1)
    assert house.enter("OUTSIDE")

    def admit() -> None:
        house.late.append("gone")

    assert not house.admission.enter("OUTSIDE", admit)
    house.admission.give_up(admit)
    house.admission.leave("OUTSIDE")
    assert (house.late, house.shut) == ([], (False, False))
