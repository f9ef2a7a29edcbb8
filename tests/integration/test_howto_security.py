"""How-to about TLS and tokens: its blocks run in order and print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.helpers.certificates import Authority
from tickertape.cli.support.command_group import cli
from tickertape.server.config.config import load_config
from tickertape.testing import running_server
from tickertape.testing.ports import ReservedPort

PAGE = Path(__file__).parents[2] / "docs/howto/security.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def run_shell(source: str) -> str:
    """Run commands in this process, and return their standard output."""
    printed = ""
    for line in source.replace("\\\n", "").splitlines():
        prompt, name, *arguments = shlex.split(line)
        assert (prompt, name) == ("$", "tickertape")
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        printed += result.stdout
    return printed


def make_certificates(source: str, directory: Path) -> None:
    """Run the OpenSSL commands of the page, or create the same files where OpenSSL 3 is missing."""
    openssl = shutil.which("openssl")
    if openssl and b"OpenSSL 3" in subprocess.check_output([openssl, "version"]):
        subprocess.run(["bash", "-euc", source], cwd=directory, check=True, capture_output=True)
    else:
        authority = Authority(directory)
        for issued, wanted in zip(authority.issue("localhost"), ("server.pem", "server.key"), strict=True):
            Path(issued).rename(directory / wanted)
    (directory / "clients.pem").write_bytes((directory / "ca.pem").read_bytes())


def run_python(source: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source, names)
    return printed.getvalue()


def test_security_howto_blocks_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secure, plain = ReservedPort(), ReservedPort()
    text = PAGE.read_text(encoding="utf-8")
    text = text.replace("0.0.0.0:9007", f"127.0.0.1:{secure.number}").replace(":9007", f":{secure.number}")
    blocks = [match.groups() for match in BLOCK.finditer(text.replace(":9009", f":{plain.number}"))]
    assert [language for language, _, _ in blocks] == [
        "bash", "console", "toml", "console", "python", "console", "python", "toml"
    ]  # fmt: skip
    (_, certificates, _), (_, tokens, _), (_, config, _), (_, serve, _), *uses, (_, mutual, _) = blocks
    make_certificates(certificates, tmp_path)
    assert serve == "$ tickertape serve tickertape.toml\n"
    assert run_shell(tokens) == ""
    for name, toml in (("server.toml", config), ("mutual.toml", mutual)):
        Path(name).write_text(toml)
        load_config(name)
    names: dict[str, Any] = {}
    with running_server(tmp_path / "data", Path("server.toml"), listen=None):
        for language, source, printed in uses:
            said = run_python(source, names) if language == "python" else run_shell(source)
            assert said == printed
