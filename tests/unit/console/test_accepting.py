"""Formats of metrics that scrapers ask for."""

from __future__ import annotations

import pytest

from service.console.accepting import accepts_gzip, prefers_openmetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "accept",
    [PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text", "Application/OpenMetrics-Text ; q = 0.1"],
)
def test_openmetrics_is_for_whoever_names_and_prefers_it(accept: str) -> None:
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain",
        "text/plain;version=0.0.4",
        "text/html,application/xhtml+xml,*/*;q=0.8",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.3,text/plain;q=0.4",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=-1",
        ";;;,,q=1",
    ],
)
def test_everybody_else_gets_plain_text(accept: str) -> None:
    assert not prefers_openmetrics(accept)


def test_gzip_is_for_whoever_allows_it() -> None:
    assert [accepts_gzip(one) for one in ("gzip", "deflate, GZIP;q=0.5", "*")] == [True] * 3
    assert [accepts_gzip(one) for one in ("", "identity", "gzip;q=0", "gzip;q=0.0,*", "br")] == [False] * 5
