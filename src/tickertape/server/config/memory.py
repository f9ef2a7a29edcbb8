"""Memory of the machine, or of the control group that limits this process (cgroup v2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tickertape.engine.limits import sow_memory_share

_ROOT: Final = Path("/")
_OF_PROCESS: Final = "0::"
"""Start of the line with the control group of a process."""


def sow_bytes_default() -> int:
    """Return the default of `sow_bytes_max`, in bytes."""
    return int(memory_bytes() * sow_memory_share)


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use. `root`: directory with `proc` and `sys`."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control group and of the groups that contain it."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    names = [line.removeprefix(_OF_PROCESS) for line in lines if line.startswith(_OF_PROCESS)]
    group = top / "".join(names).lstrip("/")
    for folder in (group, *group.parents):
        try:
            text = (folder / "memory.max").read_text().strip()
        except OSError:
            text = ""
        if text.isdigit():
            yield int(text)
        if folder == top:
            return
