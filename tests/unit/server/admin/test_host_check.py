"""Host names that the admin address answers to."""

from __future__ import annotations

import pytest

from tickertape.server.admin.http import answers_to

NAMES = ("db1.Example.com", "tickertape")


@pytest.mark.parametrize(
    "header",
    [
        "127.0.0.1", "127.0.0.1:9008", "10.1.2.3:80", "[::1]", "[::1]:9008", "[fe80::1]:1",
        "localhost", "LOCALHOST:9008", "localhost.", "a.localhost:9008",
        "db1.example.com", "DB1.example.com:9008", "db1.example.com.:9008", "tickertape:9008",
    ],
)  # fmt: skip
def test_host_check_accepts_addresses_local_names_and_listed_names(header: str) -> None:
    assert answers_to(header, NAMES)


@pytest.mark.parametrize(
    "header",
    [
        "", "evil.example", "evil.example:9008", "localhost.evil.example", "notlocalhost",
        "127.0.0.1.evil.example", "db1.example.com.evil.example", "[::1", "[::1]9008", "[evil.example]",
        "::1", "127.0.0.1:evil", "localhost:9008:1", "127.1", "0x7f000001", "localhost@evil.example",
        "local\u212aost",
    ],
)  # fmt: skip
def test_host_check_rejects_other_names(header: str) -> None:
    assert not answers_to(header, NAMES)
