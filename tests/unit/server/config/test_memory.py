"""Memory of the machine and of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tickertape.server.config.memory import memory_bytes, sow_bytes_default

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def root_with(path: Path, group: str, **limits: str) -> Path:
    """Make `proc` and `sys` with the group of the process, and limits by the last name of a group."""
    (path / "proc/self").mkdir(parents=True)
    (path / "proc/self/cgroup").write_text(group)
    for name, text in limits.items():
        folder = path / "sys/fs/cgroup" / name.replace("_", "/").strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{text}\n")
    return path


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/\n", {}, PHYSICAL),
        ("0::/a/b\n", {"a_b": "4096", "a": "max"}, 4096),
        ("0::/a/b\n", {"a_b": "8192", "a": "4096", "_": "max"}, 4096),
        ("0::/\n", {"_": "4096"}, 4096),
        ("1:name=x:/y\n0::/a\n", {"a": "4096", "y": "1024"}, 4096),
        ("0::/../a\n", {"_": "4096"}, 4096),
        ("5:memory:/a\n", {"a": "4096"}, PHYSICAL),
        ("0::/a\n", {"a": str(PHYSICAL * 2)}, PHYSICAL),
        ("0::/a\n", {"a": "much"}, PHYSICAL),
    ],
)
def test_memory_is_the_least_limit_of_machine_and_control_groups(
    tmp_path: Path, group: str, limits: dict[str, str], expected: int
) -> None:
    assert memory_bytes(root_with(tmp_path, group, **limits)) == expected


def test_memory_without_control_groups_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == PHYSICAL


def test_default_memory_of_records_is_a_part_of_the_memory() -> None:
    assert sow_bytes_default() == int(memory_bytes() * 0.7)
