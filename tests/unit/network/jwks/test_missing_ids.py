"""Times at which an issuer is asked for keys that it did not have."""

from __future__ import annotations

from service.network.jwks.missing_ids import MissingIds


def test_an_id_asks_at_once_and_again_after_a_minute() -> None:
    missing = MissingIds()
    assert missing.ask_at("a", 100.0) == 100.0
    missing.asked(100.0)
    assert missing.ask_at("a", 101.0) is None
    assert missing.ask_at("a", 159.9) is None
    assert missing.ask_at("a", 160.0) == 160.0


def test_another_id_waits_for_ten_seconds_since_the_issuer_was_asked() -> None:
    missing = MissingIds()
    missing.asked(100.0)
    assert missing.ask_at("a", 101.0) == 110.0
    assert missing.ask_at("b", 111.0) == 111.0


def test_sixteen_are_remembered_the_last_asked_for() -> None:
    missing = MissingIds()
    for number in range(1000):
        missing.ask_at(f"{number}", 100.0)
        missing.ask_at("kept", 100.0)
    assert len(missing) == 16
    assert missing.ask_at("kept", 101.0) is None
    assert missing.ask_at("5", 101.0) is not None


def test_an_id_that_was_found_is_forgotten() -> None:
    missing = MissingIds()
    missing.ask_at("a", 100.0)
    missing.found(["a", "b"])
    assert missing.ask_at("a", 101.0) == 101.0
