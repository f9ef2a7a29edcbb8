"""Description of the machine of a measurement. Must never include its name or its paths."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("uvloop", "msgspec", "numpy", "pyarrow", "crc32c", "pyspark")
SYNCS = 100
PACKAGED_WITH_PGO = ("x86_64", "aarch64")
"""Processors for which Debian and Ubuntu build Python with PGO. Their `sysconfig` does not show this."""


def _first_value(file: str, key: str) -> str:
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _file_system(directory: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        mount, kind = line.split()[1:3]
        if directory.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def _sync_microseconds(directory: Path) -> float:
    """Median of fdatasync after a write of 4 KiB into a file that has its size already."""
    path = directory / "sync-probe"
    times = []
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, SYNCS * 4096)
        os.fsync(handle)
        for n in range(SYNCS):
            os.pwrite(handle, b"x" * 4096, n * 4096)
            began = time.perf_counter()
            os.fdatasync(handle)
            times.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(times) * 1e6


def _commit() -> str:
    root = Path(__file__).resolve().parent
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _packages() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def interpreter_build(arguments: str, *, packaged: bool, machine: str) -> str:
    """Return whether the interpreter is a build with profile-guided optimization (PGO).

    `arguments`: those of `configure`. `packaged`: the interpreter belongs to a package of Debian or Ubuntu.
    """
    if "--enable-optimizations" in arguments:
        return "PGO"
    if packaged and machine in PACKAGED_WITH_PGO:
        return "PGO of the distribution"
    return "no PGO"


def belongs_to_package(program: Path, packages: Path = Path("/var/lib/dpkg/info")) -> bool:
    """Return whether a package of Debian or Ubuntu installed this interpreter."""
    lists = packages.glob("python3*-minimal*.list")
    return any(str(program) in path.read_text(encoding="utf-8").splitlines() for path in lists)


def _interpreter_build() -> str:
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS"))
    packaged = belongs_to_package(Path(sys.executable).resolve())
    return interpreter_build(arguments, packaged=packaged, machine=platform.machine())


def describe(directory: Path) -> list[str]:
    """Return lines about processor, memory, disk under `directory`, software, commit and date."""
    cores = len(os.sched_getaffinity(0))
    memory = int(_first_value("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)
    disk = f"{_file_system(directory)}, fdatasync of 4 KiB {_sync_microseconds(directory):.0f} us"
    return [
        f"{_first_value('/proc/cpuinfo', 'model name')}, {cores} cores, {memory:.0f} GiB of memory",
        f"{platform.system()} {platform.release()}, {disk}",
        f"Python {platform.python_version()} ({_interpreter_build()}), {_packages()}",
        f"commit {_commit()}, measured on {time.strftime('%Y-%m-%d', time.gmtime())}",
    ]
