"""Requests to nodes' HTTP listeners: where the token goes."""

from __future__ import annotations

import pytest

from service.client.node_http import NodeHttp
from tests.support.issuers import document, issuer_server


def test_a_proxy_of_the_environment_gets_neither_request_nor_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with issuer_server(document(b"of the proxy")) as proxy, issuer_server(document(b"of the node")) as node:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert NodeHttp(None, "a secret token").get(node.url, 5, 100) == b"of the node"
        assert proxy.asked == 0
