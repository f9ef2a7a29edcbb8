"""Server option of Spark: an address and its credential files, as one text.

The text is `tls://host:9007#caFile=...`, so the files travel with the address. It is sent to executors and
appears in plans and logs, so it contains names of files but no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from tickertape.base.errors import BadOption
from tickertape.client.common.address import parse_uri
from tickertape.client.common.credentials import Credentials
from tickertape.security.tls_options import TLS
from tickertape.security.tokens import read_token

if TYPE_CHECKING:
    from tickertape.client.blocking.log_client import LogClient

ACCESS: Final = ("tokenFile", "caFile", "certificateFile", "keyFile")
"""The options that name files, by their paths on driver and executors."""
_ARGUMENTS: Final = {"caFile": "ca", "certificateFile": "certificate", "keyFile": "key"}


def server_text(uri: str, options: Mapping[str, str]) -> str:
    """Return `uri` with the options that are in `ACCESS`. Raises `BadOption` that names the option."""
    files = {name: options[name] for name in ACCESS if name in options}
    for name, path in files.items():
        if not path.startswith("/"):
            raise BadOption(
                f"Invalid option {name} {path!r}. Use the absolute path of a file on driver and executors."
            )
    address = parse_uri(uri)
    if address.password is not None:
        raise BadOption(
            f"Invalid option servers {address.uri!r}: it contains a password, which plans and logs would "
            "show. "
            "Put it into a file and use option tokenFile."
        )
    tls = [name for name in _ARGUMENTS if name in files]
    if tls and not address.tls:
        raise BadOption(
            f"Cannot use option {tls[0]} with server {address.uri!r}: the address does not use TLS. Use "
            "tls://, or remove the option."
        )
    if ("certificateFile" in files) != ("keyFile" in files):
        raise BadOption("Options certificateFile and keyFile require each other. Set both.")
    try:
        Credentials(has_token="tokenFile" in files).check(address)
    except BadOption as error:
        raise BadOption(f"Invalid option tokenFile: {error}") from None
    return f"{uri}#{urlencode(files)}" if files else uri


def client_of(server: str, name: str, timeout_seconds: float) -> LogClient:
    """Return a connected client for a text from `server_text`. Raises the errors of `Client`."""
    # Spark starts a Python process for each planning step, and the first one needs no client.
    from tickertape.client.blocking.log_client import LogClient

    uri, _, files = server.partition("#")
    found = dict(parse_qsl(files))
    given: dict[str, Any] = {argument: found[name] for name, argument in _ARGUMENTS.items() if name in found}
    return LogClient(
        name,
        uri,
        token=read_token(found["tokenFile"], BadOption) if "tokenFile" in found else None,
        tls=TLS(**given) if given else None,
        timeout=timeout_seconds,
    )
