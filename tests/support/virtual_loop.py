"""An event loop whose time jumps to what comes next: nothing waits, whatever deadlines say."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Selector that moves the loop's clock instead of waiting."""

    skip_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not found and timeout is None:
            raise AssertionError("nothing can happen any more")
        if not found and timeout:
            self.skip_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at a thousand seconds. Is a `Clock`, too; its wall clock is far from the other one."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1000.0 + self._jumping.skip_s

    def monotonic_ms(self) -> int:
        return round(self.time() * 1000)

    def now_ms(self) -> int:
        return 1_600_000_000_000 + self.monotonic_ms()


def run_virtually(scenario: Coroutine[Any, Any, T]) -> T:
    """Run `scenario` on a `VirtualLoop`, and return its result."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.close()
