"""What a machine is to become: /etc/firn/machine.json, read and checked. Nothing here touches the machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .errors import BootError


@dataclass(frozen=True)
class Node:
    id: int
    port: int
    http_port: int


@dataclass(frozen=True)
class Package:
    url: str
    sha256: str
    region: str


@dataclass(frozen=True)
class Document:
    host: str
    nodes: tuple[Node, ...]
    package: Package
    device: str | None
    properties: dict[str, str]
    stop_timeout_s: int


HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
OURS = ("node.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "firn.http.listener")


def parse(text: str) -> Document:
    """Raises BootError, which names the field, for whatever is not as it should be."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BootError(f"the document is no JSON: {error}") from None
    top = _fields(raw, "document", {"host", "nodes", "package"}, {"data", "properties", "stop_timeout_s"})
    host = _text(top["host"], "host")
    if not HOST.fullmatch(host):
        raise BootError(f"host: {host!r} is no name or IPv4 address")
    if not isinstance(top["nodes"], list) or not 1 <= len(top["nodes"]) <= 64:
        raise BootError("nodes: a list of 1 to 64")
    nodes = tuple(_node(one, f"nodes[{i}]") for i, one in enumerate(top["nodes"]))
    ports = [port for node in nodes for port in (node.port, node.http_port)]
    if len({node.id for node in nodes}) < len(nodes) or len(set(ports)) < len(ports):
        raise BootError("nodes: two have the same id or port")
    properties = top.get("properties", {})
    if not isinstance(properties, dict):
        raise BootError("properties: an object of strings")
    for key, value in properties.items():
        if not re.fullmatch(r"[A-Za-z0-9._-]+", key):
            raise BootError(f"properties: {key!r} is no key")
        if key in OURS:
            raise BootError(f"properties: {key} is made from the rest of the document")
        _text(value, f"properties[{key}]", empty=True)
    device = None
    if "data" in top:
        device = _text(_fields(top["data"], "data", {"device"}, set())["device"], "data.device")
        if not re.fullmatch(r"/dev/[A-Za-z0-9._/-]+", device) or ".." in device:
            raise BootError(f"data.device: {device!r} is no path below /dev")
    stop_timeout_s = _whole(top.get("stop_timeout_s", 180), "stop_timeout_s", 10, 3600)
    return Document(host, nodes, _package(top["package"]), device, dict(properties), stop_timeout_s)


def _fields(raw: object, where: str, needed: set[str], allowed: set[str]) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BootError(f"{where}: an object was expected")
    if missing := sorted(needed - raw.keys()):
        raise BootError(f"{where}: {', '.join(missing)} is missing")
    if unknown := sorted(raw.keys() - needed - allowed):
        raise BootError(f"{where}: {', '.join(unknown)} is not known")
    return raw


def _text(value: object, where: str, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise BootError(f"{where}: a string without control characters was expected")
    return value


def _whole(value: object, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BootError(f"{where}: a whole number of {low} to {high} was expected")
    return value


def _node(raw: object, where: str) -> Node:
    fields = _fields(raw, where, {"id", "port", "http_port"}, set())
    return Node(
        _whole(fields["id"], f"{where}.id", 0, 2**31 - 1),
        _whole(fields["port"], f"{where}.port", 1, 65535),
        _whole(fields["http_port"], f"{where}.http_port", 1, 65535),
    )


def _package(raw: object) -> Package:
    fields = _fields(raw, "package", {"url", "sha256"}, {"region"})
    url, sha256 = _text(fields["url"], "package.url"), _text(fields["sha256"], "package.sha256")
    if not re.fullmatch(r"s3://[a-z0-9.-]+/.+|https://[^/@]+/.+|/.+", url):
        raise BootError("package.url: s3://bucket/key, https://host/path or an absolute path")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise BootError("package.sha256: 64 hexadecimal digits")
    region = _text(fields.get("region", "us-east-1"), "package.region")
    if not re.fullmatch("[a-z0-9-]+", region):
        raise BootError(f"package.region: {region!r} is no region")
    return Package(url, sha256, region)
