"""A node with HTTPS and a token, asked by those who ask nodes: `firn top`, the console, commands."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

import aiohttp
import pytest

from service.base.world import system_world
from service.cli.client_properties import read_node_http
from service.cli.main import main
from service.client.admin import Cluster
from service.client.node_http import HTTP_KEYS, PLAIN_HTTP, http_url
from service.console.web.server import COOKIE, console
from service.console.web.settings import ConsoleSettings
from tests.support.certificates import Authority
from tests.support.processes import Node, free_port

CA = Authority()
TOKEN = "a-token-that-is-long"


class Served(NamedTuple):
    bootstrap: str
    url: str
    config: str
    """file of `--command-config`"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("node")
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    CA.write(folder / "ca.pem")
    config = folder / "client.properties"
    config.write_text(f"firn.http.token.file={token}\nfirn.http.ssl.ca.location={folder / 'ca.pem'}\n")
    listener = f"127.0.0.1:{free_port()}"
    node = Node(
        folder,
        {
            "firn.http.listener": listener,
            "firn.http.ssl.keystore.location": CA.issue("node").write(folder / "node.pem"),
            "firn.http.token.file": str(token),
        },
    )
    try:
        yield Served(node.start().bootstrap, f"https://{listener}", str(config))
    finally:
        node.close()


def test_top_asks_with_the_token(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    top = ["top", "--url", served.url, "--json"]
    assert main([*top, "--command-config", served.config]) == 0
    assert json.loads(capsys.readouterr().out)["health"]["ready"] is True
    assert main(top) == 1
    assert "certificate verify failed" in capsys.readouterr().err


def test_a_refused_token_is_named(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "client.properties"
    CA.write(tmp_path / "ca.pem")
    config.write_text(f"firn.http.ssl.ca.location={tmp_path / 'ca.pem'}\n")
    assert main(["top", "--url", served.url, "--json", "--command-config", str(config)]) == 1
    error = capsys.readouterr().err
    assert "401" in error
    assert "firn.http.token.file" in error


def test_the_cluster_says_where_and_how_nodes_serve_http(served: Served) -> None:
    with Cluster(served.bootstrap) as cluster:
        url = http_url(cluster.broker_configs(cluster.describe().nodes[0].node_id, HTTP_KEYS), "elsewhere")
    assert url == served.url
    http = read_node_http(served.config)
    assert json.loads(http.get(f"{url}/readyz", 5, 1 << 20))["checks"]["http"] == {"state": "ok", "why": ""}
    assert TOKEN not in repr(http)
    with pytest.raises(OSError, match="certificate verify failed"):
        PLAIN_HTTP.get(f"{url}/readyz", 5, 1 << 20)
    with pytest.raises(HTTPError, match="404"):
        http.get(f"{url}/nothing", 5, 1 << 20)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("firn.http.token.file=/nowhere\n", "client.properties: .*/nowhere: No such file"),
        ("firn.http.ssl.ca.location=/nowhere\n", "client.properties: .*No such file"),
    ],
)
def test_files_that_are_not_there_are_named(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(text)
    assert main(["top", "--url", served.url, "--command-config", str(config)]) == 1
    assert re.search(reason, capsys.readouterr().err)


def test_the_console_serves_https_with_a_secure_cookie_and_asks_nodes(served: Served, tmp_path: Path) -> None:
    issued = CA.issue("console")
    (tmp_path / "cert.pem").write_text(issued.chain_pem)
    (tmp_path / "key.pem").write_text(issued.key_pem())
    settings = ConsoleSettings(
        served.bootstrap,
        port=0,
        token=TOKEN,
        survey_s=0,
        node_http=read_node_http(served.config),
        certificate=str(tmp_path / "cert.pem"),
        key=str(tmp_path / "key.pem"),
    )

    async def run() -> None:
        trust = ssl.create_default_context(cadata=CA.pem)
        async with console(settings, system_world()) as (url, server), aiohttp.ClientSession() as session:
            assert url.startswith("https://127.0.0.1:")
            form = urllib.parse.urlencode({"token": TOKEN, "to": "/"})
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            async with session.post(
                f"{url}/login", data=form, headers=kind, ssl=trust, allow_redirects=False
            ) as answer:
                assert answer.status == 303
                cookie = answer.headers["Set-Cookie"]
                assert cookie.startswith(f"{COOKIE}=")
                assert "; Secure" in cookie
            while not server.desk.watch.nodes:
                await server.desk.watch.next_tick()
            (node,) = server.desk.watch.nodes
            assert (node.url, node.problem) == (served.url, None)
            said = {"Cookie": cookie.partition(";")[0]}
            async with session.get(f"{url}/series", headers=said, ssl=trust) as answer:
                assert answer.status == 200

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_key_alone_is_no_https() -> None:
    assert main(["console", "--tls-key", "key.pem"]) == 1
