"""Servers and credential files in options of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.certificates import Authority, transport
from tickertape.base.errors import BadOption, Disconnected
from tickertape.security.tokens import new_token
from tickertape.spark.source.options import read_options
from tickertape.spark.source.task_reader import connect
from tickertape.testing import running_server

OPTIONS = {"servers": "tls://a.example:9007, tls://b.example:9007", "topic": "t"}


def test_credential_file_names_are_part_of_each_server_text() -> None:
    wanted = read_options({**OPTIONS, "CAFILE": "/etc/my ca.pem", "tokenFile": "/run/spark.token"})
    files = "tokenFile=%2Frun%2Fspark.token&caFile=%2Fetc%2Fmy+ca.pem"
    assert wanted.servers == (f"tls://a.example:9007#{files}", f"tls://b.example:9007#{files}")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"caFile": "ca.pem"}, "Invalid option caFile 'ca.pem'. Use the absolute path"),
        ({"certificateFile": "/a.pem"}, "Options certificateFile and keyFile require each other"),
        (
            {"servers": "tcp://127.0.0.1:1", "caFile": "/a.pem"},
            "Cannot use option caFile with server 'tcp://127.0.0.1:1'",
        ),
        (
            {"servers": "tcp://10.0.0.1:1", "tokenFile": "/t"},
            "Invalid option tokenFile: Cannot send a token to 'tcp://10.0.0.1:1': it would be unencrypted",
        ),
        ({"servers": "tls://a:1#caFile=/x"}, "has a query"),
        (
            {"servers": "tls://a:1,tls://ann:secret@b:1"},
            r"'tls://ann:\.\.\.@b:1': it contains a password.* tokenFile",
        ),
    ],
)
def test_conflicting_tls_options_are_refused(more: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        read_options({**OPTIONS, **more})


@pytest.mark.slow
def test_server_with_tls_and_tokens_is_reached(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), new_token("spark")
    file, tokens = tmp_path / "spark.token", tmp_path / "tokens.toml"
    for path in (file, tokens):
        path.touch(mode=0o600)
    file.write_text(token.text)
    tokens.write_text(f'[spark]\nsha256 = "{token.sha256}"\nclients = "^spark-"\n')
    own = authority.issue("executor", label="executor")
    config = transport(authority.issue("127.0.0.1"), client_ca=authority.ca)
    config += f'[authentication]\ntokens_file = "{tokens}"\n'
    with running_server(config=config, listen=None) as server:
        options = {
            "servers": f"tls://127.0.0.1:1,{server.uri}",
            "topic": "t",
            "caFile": authority.ca,
            "certificateFile": own.certificate,
            "keyFile": own.key,
            "tokenFile": str(file),
        }
        servers = read_options(options).servers
        client, answered = connect(servers, 10)
        with client:
            assert answered == servers[1]
            client.publish("t", b"1")
            client.publish_flush()
        options.pop("tokenFile")
        with pytest.raises(Disconnected, match="this server requires a token"):
            connect(read_options(options).servers, 10)
        assert token.text not in str(servers)
