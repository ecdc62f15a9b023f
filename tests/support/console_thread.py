"""A console in this process, on a thread with a loop of its own: pages without a browser."""

from __future__ import annotations

import asyncio
import html
import re
import threading
import urllib.error
import urllib.request
from typing import Any, NamedTuple, Self

from service.base.world import system_world
from service.console.web.server import ConsoleServer, console
from service.console.web.settings import ConsoleSettings


class Page(NamedTuple):
    """A page: its status, its source, and its text without tags, in one line."""

    status: int
    source: str
    text: str

    def row(self, first: str) -> list[str]:
        """Return the cells of the table row whose head is `first`, as many empty ones if there is none."""
        for row in re.findall(r"<tr>(.*?)</tr>", self.source, re.DOTALL):
            cells = [_text(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            if cells and cells[0] == first:
                return cells
        return [""] * 12


class ConsoleThread:
    """A console of `bootstrap`; `desk` is for its loop alone."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self._settings = ConsoleSettings(bootstrap, port=0, **{"survey_s": 0, **settings})
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="console")
        self.url = ""
        self.server: ConsoleServer

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with console(self._settings, system_world()) as (self.url, self.server):
                self._ready.set()
                await self._end.wait()
        finally:
            self._ready.set()

    def get(self, path: str) -> Page:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return page_of(answer.status, answer.read().decode())
        except urllib.error.HTTPError as e:
            return page_of(e.code, e.read().decode())


def page_of(status: int, source: str) -> Page:
    main = source.partition("<main")[2] or source
    return Page(status, source, _text(main))


def _text(source: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", source)).split())
