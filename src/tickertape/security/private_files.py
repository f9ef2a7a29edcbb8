"""Read secret files after checks of their permissions and size.

Errors never contain the content of a secret file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tickertape.base.errors import UsageError
from tickertape.base.text_format import shown
from tickertape.security.limits import secret_file_bytes_max

_OTHERS: Final = stat.S_IRWXO
"""Permission bits of other users. The permissions of the group are not checked."""


def check_private(path: str | Path, what: str, refuse: type[UsageError]) -> None:
    """Check that `path` is a regular file without permissions for other users.

    `what` is the name of the file in errors. Raises `refuse`.
    """
    path = str(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise refuse(
            f"Cannot read {what} {path!r}: {error.strerror or error}. Check the path and its permissions."
        ) from None
    except ValueError:
        raise refuse(f"Invalid {what} {shown(path)}. Use the path of a file.") from None
    _judge(status, path, what, refuse)


def read_private(path: str | Path, what: str, refuse: type[UsageError]) -> bytes:
    """Return the contents of a file after the checks of `check_private`. Raises `refuse`."""
    path = str(path)
    check_private(path, what, refuse)  # Check before the open: an open of a pipe can block for ever.
    try:
        with open(path, "rb") as file:
            data = file.read(secret_file_bytes_max + 1)
            status = os.fstat(file.fileno())
    except OSError as error:
        raise refuse(
            f"Cannot read {what} {path!r}: {error.strerror or error}. Check the path and its permissions."
        ) from None
    _judge(status, path, what, refuse)  # Another process may have replaced the file.
    if len(data) > secret_file_bytes_max:
        raise refuse(
            f"Cannot read {what} {path!r}: it is larger than {secret_file_bytes_max} bytes. Use another file."
        )
    return data


def _judge(status: os.stat_result, path: str, what: str, refuse: type[UsageError]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise refuse(f"Cannot read {what} {path!r}: it is not a regular file. Use another path.")
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise refuse(
            f"Cannot use {what} {path!r}: it is accessible to other users (mode {mode:04o}). "
            f"Run: chmod 600 {path!r}"
        )
