"""Static files of the console, read once."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from aiohttp.web_response import Response

KINDS: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
NAMES: Final = ("console.css", "console.js", "uPlot.css", "uPlot.js", "uPlot.LICENSE", "icon.svg")
ROOT: Final = "/static/"


class Asset(NamedTuple):
    data: bytes
    kind: str

    def response(self) -> Response:
        """Return a response that browsers cache: the address changes with the bytes."""
        return Response(
            body=self.data,
            headers={
                "Content-Type": f"{self.kind}; charset=utf-8",
                "Cache-Control": "public, max-age=31536000",
            },
        )


class Assets:
    """All static files; `addresses` by name."""

    def __init__(self) -> None:
        self._by_path: dict[str, Asset] = {}
        self.addresses: dict[str, str] = {}
        folder = files("service.console.web") / "static"
        for name in NAMES:
            data = (folder / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:12]
            stem, dot, end = name.rpartition(".")
            path = f"{ROOT}{stem}-{digest}{dot}{end}"
            self._by_path[path] = Asset(data, KINDS[dot + end])
            self.addresses[name] = path

    def find(self, path: str) -> Asset | None:
        return self._by_path.get(path)
