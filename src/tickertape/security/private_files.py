"""Read secret files: checks their permissions and size.

Errors contain no content of such a file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tickertape.base.errors import UsageError
from tickertape.security.limits import secret_file_bytes_max

_OTHERS: Final = stat.S_IRWXO
"""The rights of everybody; those of the group are a matter of who made the group."""


def check_private(path: str | Path, what: str, refuse: type[UsageError]) -> None:
    """Raise `refuse` unless `path`, which is `what`, is a file that not everybody may read or write."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise refuse(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise refuse(f"{what}: that is no file name") from None
    _judge(status, path, what, refuse)


def read_private(path: str | Path, what: str, refuse: type[UsageError]) -> bytes:
    """Return the contents of a file, checked as by `check_private`. Raises `refuse`."""
    check_private(path, what, refuse)  # before it is opened: to open a pipe may wait for ever
    try:
        with open(path, "rb") as file:
            data = file.read(secret_file_bytes_max + 1)
            status = os.fstat(file.fileno())
    except OSError as error:
        raise refuse(f"{what} {path} cannot be read: {error.strerror or error}") from None
    _judge(status, path, what, refuse)  # another one may have taken its place
    if len(data) > secret_file_bytes_max:
        raise refuse(f"{what} {path} is larger than {secret_file_bytes_max} bytes")
    return data


def _judge(status: os.stat_result, path: str | Path, what: str, refuse: type[UsageError]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise refuse(f"{what} {path} is no file")
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise refuse(f"{what} {path} may be used by everybody (mode {mode:04o}): chmod 600 {path}")
