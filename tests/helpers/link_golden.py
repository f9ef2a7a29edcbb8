"""Files with the bytes of each command of a replication link.

Must never be run just to make a failing test pass: other programs rely on the files, and a new version
requires a line in an ADR. `python -m tests.helpers.link_golden` writes them.
"""

from __future__ import annotations

from pathlib import Path

from tests.helpers.link_frames import conversation
from tests.helpers.wire import joined
from tests.helpers.wire_golden import GOLDEN
from tickertape.wire.frames import encode_frame


def link_path(name: str) -> Path:
    return GOLDEN / f"link-{name}.bin"


def write() -> None:
    """Write every golden file of links."""
    for name, (_, command, batch) in conversation().items():
        link_path(name).write_bytes(joined(encode_frame(command, batch)))


if __name__ == "__main__":
    write()
