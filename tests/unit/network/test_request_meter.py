"""Meters of requests: the loop's time of each, and the throttles that come of it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from service.config.quotas import QuotaConfig
from service.config.settings import BrokerConfig
from service.network.request_meter import RequestMeter, RequestQuotas
from service.quotas.entities import Limits
from service.security.principal import Principal
from service.security.session import Session
from tests.support.turns import Clock, with_clock

PLAIN: QuotaConfig = BrokerConfig.from_properties({}).quotas
ALICE = Session(Principal("User", "alice"), "192.0.2.1", "L", "SASL_SSL")
ONE_PERCENT: Limits = {("alice", "", ""): {"request_percentage": 1.0}}


def quotas_with(limits: Limits, config: QuotaConfig = PLAIN) -> RequestQuotas:
    quotas = RequestQuotas(asyncio.get_running_loop(), config)
    quotas.apply(limits)
    return quotas


def metered(quotas: RequestQuotas, size: int = 100, session: Session = ALICE) -> RequestMeter:
    found = quotas.meter(session, "c", size)
    assert found is not None
    return found


def test_quotas_are_active_while_there_is_a_limit() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with({})
        assert not quotas.active
        assert quotas.meter(ALICE, "c", 1) is None
        quotas.apply(ONE_PERCENT)
        assert quotas.active
        bob = Session(Principal("User", "bob"), "192.0.2.1", "L", "SASL_SSL")
        assert quotas.meter(bob, "c", 1) is None, "he has no limit"
        quotas.apply({})
        assert not quotas.active
        quotas.close()

    with_clock(scenario)


def test_a_session_resolves_its_entity_once_until_limits_or_client_id_change() -> None:
    async def scenario(clock: Clock) -> None:
        session = Session(Principal("User", "alice"), "192.0.2.1", "L", "SASL_SSL")
        quotas = quotas_with(ONE_PERCENT)
        first = quotas.shares_of(session, "c")
        assert quotas.shares_of(session, "c") is first
        assert quotas.shares_of(session, "d") is not first
        quotas.apply({("alice", "", ""): {"request_percentage": 2.0}})
        changed = quotas.shares_of(session, "d")
        assert changed.request is not None
        assert changed.request.limit == 2.0

    with_clock(scenario)


def test_the_time_of_a_call_counts() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT)
        meter = metered(quotas)
        clock.advance_us(99_000)
        assert meter.answered() == 0, "1 % of ten seconds are 0.1"
        meter.pause()
        meter = metered(quotas)
        clock.advance_us(2_000)
        assert meter.answered() == 98, "101 ms in 10.002 seconds"
        meter.pause()
        quotas.close()

    with_clock(scenario)


def test_a_throttle_of_time_is_a_window_at_most() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT, dataclasses.replace(PLAIN, quota_window_size_seconds=3))
        meter = metered(quotas)
        clock.advance_us(60_000_000)
        assert meter.answered() == 3_000
        quotas.close()

    with_clock(scenario)


def test_the_sending_after_an_answer_counts_for_later_requests() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT)
        meter = metered(quotas)
        assert meter.answered() == 0
        clock.advance_us(150_000)
        meter.pause()
        assert metered(quotas).answered() > 0
        quotas.close()

    with_clock(scenario)


def test_a_task_counts_while_it_runs_and_not_while_it_waits() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with({("alice", "", ""): {"request_percentage": 100.0}})
        meter = metered(quotas)
        meter.pause()

        async def work() -> str:
            for _ in range(3):
                clock.advance_us(1_000)
                await asyncio.sleep(0)
            return "done"

        async def others() -> None:
            for _ in range(5):
                clock.advance_us(70_000)
                await asyncio.sleep(0)

        result, _ = await asyncio.gather(meter.follow(work()), others())
        assert result == "done"
        assert meter._spent_s == pytest.approx(0.003)
        quotas.close()

    with_clock(scenario)


def test_a_followed_task_fails_and_is_cancelled_as_without_a_meter() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT)

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await metered(quotas).follow(fails())
        ended = []

        async def waits() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append("cleaned up")

        task = asyncio.ensure_future(metered(quotas).follow(waits()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cleaned up"]
        quotas.close()

    with_clock(scenario)


def test_the_time_of_a_thread_counts() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT)
        meter = metered(quotas)
        meter.pause()

        def work(much: int) -> int:
            clock.advance_us(much)
            return much

        assert meter.on_thread(work)(150_000) == 150_000
        assert meter.answered() > 0
        quotas.close()

    with_clock(scenario)


def test_a_quick_answer_goes_out_while_its_client_is_not_over_its_time() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with(ONE_PERCENT)
        meter = metered(quotas)
        assert meter.is_quick()
        clock.advance_us(150_000)
        meter.pause()
        again = metered(quotas)
        assert not again.is_quick()
        assert again.answered() > 0
        quotas.close()

    with_clock(scenario)


def test_a_fetch_that_is_throttled_for_its_time_counts_no_bytes() -> None:
    async def scenario(clock: Clock) -> None:
        both: Limits = {("alice", "", ""): {"request_percentage": 1.0, "consumer_byte_rate": 100.0}}
        quotas = quotas_with(both)
        meter = metered(quotas)
        clock.advance_us(150_000)
        assert meter.fetched(900) > 0
        clock.advance_us(12_000_000)
        assert metered(quotas).fetched(900) == 0
        assert metered(quotas).fetched(200) > 0
        assert metered(quotas).fetched(90) == 0, "what was not sent does not count"
        quotas.close()

    with_clock(scenario)


def test_the_most_of_a_fetch_is_what_its_windows_allow() -> None:
    async def scenario(clock: Clock) -> None:
        quotas = quotas_with({("alice", "", ""): {"consumer_byte_rate": 100.0}})
        assert metered(quotas).most_fetched(5_000) == 1_000
        assert metered(quotas).most_fetched(500) == 500
        quotas.apply(ONE_PERCENT)
        assert metered(quotas).most_fetched(5_000) == 5_000
        quotas.close()

    with_clock(scenario)


def test_made_up_client_ids_are_forgotten_in_short_turns() -> None:
    async def scenario() -> None:
        quotas = quotas_with({("", None, ""): {"producer_byte_rate": 100.0}})
        for n in range(3_000):
            meter = quotas.meter(ALICE, f"made-up-{n}", 10)
            assert meter is not None
            meter.produced(is_exempt=False)
        assert quotas.active_clients()["produce"] == 3_000
        await asyncio.sleep(12)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert set(quotas.active_clients().values()) == {0}
        quotas.close()

    from tests.support.virtual_loop import run_virtually

    run_virtually(scenario())
