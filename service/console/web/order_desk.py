"""Orders to erase keys, as brokers tell of them. Owned by the event loop; brokers are asked on a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.base.world import World
from service.client.admin import Cluster
from service.client.all_brokers import CommandDeadline
from service.client.erasures import find_orders
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.order_rows import OrdersShown, orders_of
from service.console.web.ttl_cache import Call, TtlCache

AGE_MS: Final = 5_000
_WAIT_S: Final = 2.0
"""Longest wait of a page; what comes later is shown at the next refresh."""
_SILENCE_S: Final = 5.0


class OrderDesk:
    """Cache of what brokers tell of orders, some seconds old while somebody looks."""

    def __init__(
        self, kafka: KafkaDesk, world: World, call: Call, error_text: Callable[[BaseException], str]
    ) -> None:
        self._kafka = kafka
        self._error_text = error_text
        self._world = world
        self._orders: TtlCache[OrdersShown] = TtlCache(call, world.clock, AGE_MS)

    async def find(self) -> OrdersShown:
        """Return the orders; what was known last, and the problem, where no broker answers."""
        found = await self._orders.get(self._ask, _WAIT_S)
        known = OrdersShown() if found.value is None else found.value
        return known if found.problem is None else known._replace(problem=self._error_text(found.problem))

    def _ask(self) -> OrdersShown:
        with self._kafka.opened(Cluster, _SILENCE_S) as cluster:
            return orders_of(find_orders(cluster, CommandDeadline(_SILENCE_S, self._world)))
