"""Object store for tests: a process that speaks S3, with conditional puts, and keeps all data in memory.

Must never be reachable from outside this machine.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tickertape.testing.ports import ReservedPort
from tickertape.testing.server import wait_until

HOST = "127.0.0.1"
BUCKET = "desk"
PYTHON = Path(__file__).resolve().parent.parent.parent / ".venv-object-store" / "bin" / "python"
"""Made by `script/test --full`."""
START_SECONDS_MAX = 60.0


class ObjectStore(NamedTuple):
    """Its port, and the storage options for delta-rs."""

    port: int
    options: dict[str, str]

    def location(self, name: str) -> str:
        """Return the URI of a path in its bucket."""
        return f"s3://{BUCKET}/{name}"

    def requests(self, method: str, path: str) -> int:
        """Send a request without credentials, and return its status."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path)
            return connection.getresponse().status

    def answers(self) -> bool:
        """Return whether the store is ready."""
        try:
            return self.requests("GET", "/") == http.HTTPStatus.OK
        except OSError:
            return False


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run an empty store with one bucket."""
    reserved = ReservedPort()
    options = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{reserved.number}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "desk-key",
        "AWS_SECRET_ACCESS_KEY": "desk-secret",
    }
    store = ObjectStore(reserved.number, options)
    command = [str(PYTHON), "-m", "moto.server", "-H", HOST, "-p", str(store.port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or store.answers(), START_SECONDS_MAX)
            assert process.poll() is None, f"the object store ended with {process.returncode}"
            assert store.requests("PUT", f"/{BUCKET}") == http.HTTPStatus.OK
            yield store
        finally:
            process.kill()
    reserved.release()
