"""Server option of Spark: an address and the files used to connect, as one text.

The text is `tls://host:9007#caFile=...`, so whoever passes the address on passes the files with it. It goes
to executors, plans and logs, so it contains names of files and no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from tickertape.base.errors import BadOption
from tickertape.client.common.address import parse_uri
from tickertape.client.common.credentials import Credentials
from tickertape.security.contexts import TLS
from tickertape.security.tokens import read_token

if TYPE_CHECKING:
    from tickertape.client.blocking.client import Client

ACCESS: Final = ("tokenFile", "caFile", "certificateFile", "keyFile")
"""The options that name files, by their paths on driver and executors."""
_ARGUMENTS: Final = {"caFile": "ca", "certificateFile": "certificate", "keyFile": "key"}


def server_text(uri: str, options: Mapping[str, str]) -> str:
    """`uri` with those of `options` that are in `ACCESS`. Raises `BadOption`, naming the option."""
    files = {name: options[name] for name in ACCESS if name in options}
    for name, path in files.items():
        if not path.startswith("/"):
            raise BadOption(
                f"option {name} is the absolute path of a file, as driver and executors see it, not {path!r}"
            )
    address = parse_uri(uri)
    if address.password is not None:
        raise BadOption(
            f"option servers: {address.uri} has a password in it, which plans and logs would show: put it "
            f"into a file, and name that with option tokenFile"
        )
    tls = [name for name in _ARGUMENTS if name in files]
    if tls and not address.tls:
        raise BadOption(f"option {tls[0]} is for tls:// servers, and {address.uri} is none")
    if ("certificateFile" in files) != ("keyFile" in files):
        raise BadOption("options certificateFile and keyFile go together; give both")
    try:
        Credentials(has_token="tokenFile" in files).check(address)
    except BadOption as error:
        raise BadOption(f"option tokenFile: {error}") from None
    return f"{uri}#{urlencode(files)}" if files else uri


def client_of(server: str, name: str, timeout_seconds: float) -> Client:
    """Return a client of a server that `server_text` gave, logged on. Raises what `Client` raises."""
    # Spark starts a Python process for each step of planning; the first of them needs no client.
    from tickertape.client.blocking.client import Client

    uri, _, files = server.partition("#")
    found = dict(parse_qsl(files))
    given: dict[str, Any] = {argument: found[name] for name, argument in _ARGUMENTS.items() if name in found}
    return Client(
        name,
        uri,
        token=read_token(found["tokenFile"], BadOption) if "tokenFile" in found else None,
        tls=TLS(**given) if given else None,
        timeout=timeout_seconds,
    )
