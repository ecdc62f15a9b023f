"""Links between the nodes of a cluster that can be cut or slowed, each way by itself, and mended again.

In front of each controller's listener, and of brokers' for each other where that is wanted, stands a proxy,
whose address is the one that is advertised. Who
connects to it is told by the system, so that one address serves all. What is on a cut link waits,
as it would in a network, and arrives when the link is mended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from service.cli.dev_nodes import HOST, agree_on_ports
from tests.support.quorums import Cluster, Member

_BYTES = 1 << 16
_LOOKS = 20
"""A connection that comes when its maker is just beginning may be nobody's for a moment."""
_NETLINK_SOCK_DIAG = 4
_ASKED = struct.Struct("=IHHII BBxxI 2s2s 16s16s I Q")
"""``nlmsghdr`` and ``inet_diag_req_v2``"""
_BY_FAMILY, _IS_REQUEST, _ANY_STATE, _NO_COOKIE = 20, 1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_INODE = struct.Struct("=I")
_INODE_AT = 84
"""in what is answered: behind an ``nlmsghdr``, the socket's id and what it has to send"""


def _inode(source: int, target: int) -> str | None:
    """Of the socket that is connected from a port to another. Asked for by name: the table of all of them, in
    `/proc`, takes the system milliseconds each time."""
    ports = source.to_bytes(2, "big"), target.to_bytes(2, "big")
    host = socket.inet_aton(HOST)
    family = int(socket.AF_INET), socket.IPPROTO_TCP
    head = _ASKED.size, _BY_FAMILY, _IS_REQUEST, 0, 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asking:
        asking.send(_ASKED.pack(*head, *family, _ANY_STATE, *ports, host, host, 0, _NO_COOKIE))
        answer = asking.recv(4096)
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind != _BY_FAMILY:
        return None  # there is none
    (inode,) = _INODE.unpack_from(answer, _INODE_AT)
    return str(inode) if inode else None


def _holds(pid: int, inode: str) -> bool:
    held = f"socket:[{inode}]"
    with contextlib.suppress(OSError):  # it has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):  # as text: there are hundreds
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == held:
                    return True
    return False


class Links:
    """The links between nodes: from each to each. All are whole at first."""

    def __init__(self, members: Mapping[int, Member]) -> None:
        self._members = members
        self._whole = {pair: threading.Event() for pair in product(members, members)}
        self._delays_s = dict.fromkeys(self._whole, 0.0)
        for one in self._whole.values():
            one.set()

    def cut(self, sources: Collection[int], targets: Collection[int]) -> None:
        """Nothing comes through from any of the one to any of the others."""
        for pair in product(sources, targets):
            self._whole[pair].clear()

    def slow(self, sources: Collection[int], targets: Collection[int], seconds: float) -> None:
        """Delay each 64 KiB of a connection, or what there is, by this time."""
        for pair in product(sources, targets):
            self._delays_s[pair] = seconds

    def mend(self) -> None:
        self._delays_s.update(dict.fromkeys(self._delays_s, 0.0))
        for one in self._whole.values():
            one.set()

    def wait(self, source: int, target: int) -> None:
        """Wait until bytes from one to the other get through."""
        if (delay_s := self._delays_s[source, target]) > 0:
            time.sleep(delay_s)
        self._whole[source, target].wait()

    def node_of(self, source: int, target: int) -> int | None:
        """Return the node whose process has connected from a port to another; None: it has gone."""
        for _ in range(_LOOKS):
            if (inode := _inode(source, target)) is None:
                return None
            for node_id, one in self._members.items():
                if one.process is not None and _holds(one.process.pid, inode):
                    return node_id
            time.sleep(0.01)
        return None


class Front:
    """Takes connections for a node, and passes on what they bring, each way as the links are."""

    def __init__(self, node_id: int, port: int, behind: int, links: Links) -> None:
        self.node_id, self._port, self._behind, self._links = node_id, port, behind, links
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, name=f"front-{node_id}", daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, (_, port) = self._listener.accept()
            except OSError:
                return  # closed
            self._sockets.append(near)
            threading.Thread(target=self._join, args=(near, port), daemon=True).start()

    def _join(self, near: socket.socket, port: int) -> None:
        node_id = self._links.node_of(port, self._port)
        if node_id is None:
            near.close()
            return
        self._links.wait(node_id, self.node_id)
        try:
            far = socket.create_connection((HOST, self._behind))
        except OSError:
            near.close()  # nobody is there
            return
        self._sockets.append(far)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = (near, far, node_id, self.node_id), (far, near, self.node_id, node_id)
        for way in ways:
            threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, sender: int, receiver: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(_BYTES)
                self._links.wait(sender, receiver)
                if not data:
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Linked(Cluster):
    """Controllers that reach each other, and are reached by brokers, over links that can be cut.

    `brokers`: they reach each other over these links, too, by a listener of their own; clients never do.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        brokers: bool = False,
    ) -> None:
        super().__init__(folder, nodes, nodes, settings)
        self._taken = {int(port) for one in self.members.values() for port in _ports(one)}
        self.links = Links(self.members)
        self.controllers: dict[int, str] = {}
        """where each controller can be asked whatever is cut"""
        self._fronts: list[Front] = []
        for member, behind in zip(self.members.values(), self._free(nodes), strict=True):
            advertised = member.settings["listeners"]
            front = advertised.rpartition(":")[2]
            self.controllers[member.node_id] = f"{HOST}:{behind}"
            member.settings["advertised.listeners"] = advertised
            member.settings["listeners"] = advertised.removesuffix(front) + str(behind)
            self._fronts.append(Front(member.node_id, int(front), behind, self.links))
        if brokers:
            self._link_brokers()

    def _free(self, count: int) -> list[int]:
        """Ports that nobody of this cluster has, who need not listen yet."""
        found: list[int] = []
        while len(found) < count:
            found += [one for one in agree_on_ports(0, 0, count)[1] if one not in self._taken]
            self._taken.update(found)
        return found[:count]

    def _link_brokers(self) -> None:
        count = len(self.members)
        for member, front, behind in zip(
            self.members.values(), self._free(count), self._free(count), strict=True
        ):
            member.settings |= {
                "advertised.listeners": f"{member.settings['advertised.listeners']},BROKERS://{HOST}:{front}",
                "listeners": f"{member.settings['listeners']},BROKERS://{HOST}:{behind}",
                "inter.broker.listener.name": "BROKERS",
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BROKERS:PLAINTEXT"
                ),
            }
            self._fronts.append(Front(member.node_id, front, behind, self.links))

    def stop(self) -> None:
        """Stop for good, all at once, so that no last node waits for others to take its leaderships."""

        def stop_one(member: Member) -> None:
            member.stop()
            for front in self._fronts:
                if front.node_id == member.node_id:
                    front.close()

        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(stop_one, self.members.values()))

    def __exit__(self, *about: object) -> None:
        self.links.mend()
        super().__exit__(*about)
        for front in self._fronts:
            front.close()


def _ports(member: Member) -> list[str]:
    return [one.rpartition(":")[2] for one in member.settings["listeners"].split(",")]
