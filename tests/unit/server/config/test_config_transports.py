"""`[[transport]]` with TLS, and `[authentication]`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.server.config.config import Config, examine
from tickertape.server.config.transports import Authentication, Transport

TLS = "listen = 'tls://0.0.0.0:9007'\n"
ONLY = "has an effect on tls:// addresses only, not on tcp://127.0.0.1:9007. Remove it."
PAIR = "certificate = 'a.pem'\nkey = 'a.key'\n"


def read(tmp_path: Path, text: str) -> tuple[Config | None, list[str]]:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    config, problems = examine(path)
    return config, [str(problem).removeprefix(f"{tmp_path}/") for problem in problems]


def test_tls_address_beyond_loopback_is_accepted(tmp_path: Path) -> None:
    config, problems = read(tmp_path, f"[[transport]]\n{TLS}{PAIR}client_ca = '/etc/clients.pem'\n")
    assert problems == []
    assert config is not None
    assert config.transports == [
        Transport(
            listen="tls://0.0.0.0:9007",
            certificate=str(tmp_path / "a.pem"),
            key=str(tmp_path / "a.key"),
            client_ca="/etc/clients.pem",
        )
    ]
    assert config.authentication is None


def test_relative_paths_of_an_included_file_are_relative_to_that_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "in.toml").write_text(
        f"[[transport]]\n{TLS}{PAIR}[authentication]\ntokens_file = 'tokens.toml'\n"
    )
    config, problems = read(tmp_path, "include = ['inner/in.toml']\n")
    assert problems == []
    assert config is not None
    assert config.transports[0].key == str(tmp_path / "inner" / "a.key")
    assert config.authentication == Authentication(tokens_file=str(tmp_path / "inner" / "tokens.toml"))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            f"[[transport]]\n{TLS}",
            [("c.toml:2: transport.listen: tls://0.0.0.0:9007 needs certificate and key "
"in the same table of a file.")],
        ),
        (
            f"[[transport]]\n{TLS}key = 'a.key'\n",
            [("c.toml:2: transport.listen: tls://0.0.0.0:9007 needs certificate and key "
"in the same table of a file.")],
        ),
        (
            f"[[transport]]\n{TLS}{PAIR}insecure = true\n",
            ["c.toml:5: transport.insecure: has no effect on a tls:// address. Remove it."],
        ),
        (
            f"[[transport]]\nlisten = 'tcp://127.0.0.1:9007'\n{PAIR}",
            [
                f"c.toml:3: transport.certificate: {ONLY}",
                f"c.toml:4: transport.key: {ONLY}",
            ],
        ),
        (
            f"[[transport]]\n{TLS}certificate = ''\nkey = 1\n",
            [
                "c.toml:3: transport.certificate: must be the path of a file, not ''",
                "c.toml:4: transport.key: must be a string in quotes, not 1",
            ],
        ),
        (
            "[[transport]]\nlisten = 'tcp://0.0.0.0:9007'\n",
            [
                (
                    "c.toml:2: transport.listen: tcp://0.0.0.0:9007 is reachable from other machines and "
                    "not encrypted. Listen on tls:// with a certificate or on 127.0.0.1, or set "
                    "insecure = true in its [[transport]] of a configuration file."
                )
            ],
        ),
        (
            "[[transport]]\nlisten = 'unix:///a'\ninsecur = true\n",
            [
                (
                    "c.toml:3: transport.insecur: unknown key. Did you mean 'insecure'? [transport] takes "
                    "listen, insecure, certificate, key, client_ca, replication, clients"
                )
            ],
        ),
        ("[authentication]\n", ["c.toml:1: authentication.tokens_file: is missing here"]),
        (
            "authentication = 1\n",
            ["c.toml:1: authentication: must be a table: write [authentication] and its keys below"],
        ),
        (
            "[authentication]\ntokens_file = 'a'\nusers = 1\n",
            ["c.toml:3: authentication.users: unknown key. [authentication] takes tokens_file"],
        ),
    ],
)  # fmt: skip
def test_invalid_transport_and_authentication_keys_are_refused(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    config, found = read(tmp_path, text)
    assert config is None
    assert [
        problem for problem in found if "is missing here" not in problem or problem in problems
    ] == problems


def test_tls_address_on_the_command_line_is_refused() -> None:
    _, problems = examine(None, listen=["tls://127.0.0.1:9007"])
    assert [problem.text for problem in problems] == [
        "tls://127.0.0.1:9007 needs certificate and key in the same table of a file."
    ]
