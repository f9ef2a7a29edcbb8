"""Directories of store files: creates missing parents so that they survive a power failure."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_parents(path: Path) -> None:
    """Create the missing directories above `path`, and sync the entry of each. Raises `OSError`."""
    missing: list[Path] = []
    for parent in path.absolute().parents:
        if parent.exists():
            break
        missing.append(parent)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
