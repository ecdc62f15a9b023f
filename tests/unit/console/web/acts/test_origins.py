"""Origin of forms that change something."""

from __future__ import annotations

import pytest

from service.console.web.acts.origins import is_own_form

HOST = "console.example:8080"
OWN = f"http://{HOST}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": OWN},
        {"Origin": OWN, "Sec-Fetch-Site": "same-origin"},
        {"Origin": f"https://{HOST}"},  # a proxy before the console speaks HTTPS
        {"Origin": OWN.upper(), "Host": HOST.upper()},
        {"Referer": f"{OWN}/change/delete-topic?topic=a"},
        {"Referer": OWN},
    ],
)
def test_a_page_of_this_console_is_known_by_origin_or_referer(headers: dict[str, str]) -> None:
    assert is_own_form({"Host": HOST, **headers}, is_sealed=False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "null", "Referer": f"{OWN}/"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Referer": f"{OWN}/"},
        {"Origin": "http://console.example"},
        {"Origin": "http://console.example:8081"},
        {"Origin": f"http://{HOST}.evil.example"},
        {"Origin": f"http://evil.example/{HOST}"},
        {"Origin": HOST},
        {"Origin": f"ftp://{HOST}"},
        {"Origin": f"{OWN} http://evil.example"},
        {"Origin": OWN, "Sec-Fetch-Site": "same-site"},
        {"Origin": OWN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": OWN, "Sec-Fetch-Site": "none"},
        {"Origin": OWN, "Sec-Fetch-Site": ""},
        {"Referer": "http://evil.example/"},
        {"Referer": f"http://{HOST}@evil.example/"},
        {"Referer": f"http://evil.example\\@{HOST}/"},
        {"Referer": f"http://evil.example#@{HOST}/"},
        {"Referer": f"http://evil.example?{OWN}"},
        {"Origin": "http://", "Host": ""},
        {"Referer": "http://", "Host": ""},
    ],
)
def test_a_form_that_may_be_of_another_site_is_refused(headers: dict[str, str]) -> None:
    assert not is_own_form({"Host": HOST, **headers}, is_sealed=False)


def test_a_console_with_https_takes_no_form_of_a_page_without() -> None:
    assert is_own_form({"Host": HOST, "Origin": f"https://{HOST}"}, is_sealed=True)
    assert not is_own_form({"Host": HOST, "Origin": OWN}, is_sealed=True)
