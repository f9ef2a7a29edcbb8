"""Checks of the machine and files that a server depends on, for `tickertape doctor`.

Each check returns findings and changes nothing. No check opens the log or takes a lock.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

import msgspec

from tickertape.base.errors import ConfigurationError
from tickertape.base.version import __version__
from tickertape.security.certificates import not_after
from tickertape.server.access.tokens import read_tokens
from tickertape.server.config.config import Config
from tickertape.server.limits import connections_max
from tickertape.server.sync_cost import SyncCost, measure

Level = Literal["ok", "warn", "fail"]

_DAY_SECONDS: Final = 86_400
_EXPIRY_WARN_DAYS: Final = 30
_SLOW_P99_SECONDS: Final = 0.05
_NO_SYNC_P50_SECONDS: Final = 0.000_005
"""Faster syncs than any disk has: the write stays in a cache."""
_JUMP_SECONDS: Final = 0.1
_FUTURE_SECONDS: Final = 60
_SEGMENTS_NEEDED: Final = 2
_SEGMENTS_WANTED: Final = 8
_FILES_BESIDE: Final = 1_000
_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"})
_PACKAGES: Final = (
    "numpy", "pyarrow", "msgspec", "crc32c", "google-re2", "pyroaring", "uvloop", "click",
    "pyspark", "deltalake",
)  # fmt: skip
_TIME_ERROR: Final = 5
"""Result of `adjtimex` while no time service synchronises the clock."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check."""

    check: str
    level: Level
    text: str
    cure: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    """Measured values by name. Names end with the unit."""


def diagnose(config: Config, seconds: float, advance: Callable[[float], object]) -> Iterator[Finding]:
    """Run every check. `seconds`: duration of the write test. `advance` gets the duration of each write."""
    directory = existing(config.instance.data)
    kind = file_system(directory)
    clocks = time.time() - time.monotonic()
    yield from _disk(config, directory, kind, seconds, advance)
    jumped = time.time() - time.monotonic() - clocks
    yield space(config, directory)
    yield open_files()
    yield clock(jumped, seconds, config.instance.data)
    yield from certificates(config)
    yield from tokens(config)
    yield versions()


def existing(path: str) -> str:
    """Return `path`, or its nearest existing parent directory."""
    place = Path(path).absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return str(place)


def file_system(directory: str) -> str:
    """Return the kernel's name of the file system type of `directory`. Empty if unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    target, best, kind = os.path.realpath(directory), "", ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _disk(
    config: Config, directory: str, kind: str, seconds: float, advance: Callable[[float], object]
) -> Iterator[Finding]:
    if kind in _VOLATILE:
        yield Finding(
            check="file system",
            level="fail",
            text=f"{directory} is on {kind}: its files are lost when the machine restarts",
            cure="Set data in [instance] to a directory on a disk",
        )
    elif kind in _NETWORK:
        yield Finding(
            check="file system",
            level="warn",
            text=f"{directory} is on {kind}: locks and syncs depend on the file server",
            cure="Prefer a local disk or a block device",
        )
    try:
        cost = measure(directory, seconds, advance)
    except OSError as error:
        yield Finding(
            check="synced write",
            level="fail",
            text=f"cannot write in {directory}: {error.strerror or error}",
            cure="Grant the server's user write permission, or free disk space",
        )
        return
    yield synced_write(cost, directory, kind, config.journal.sync)


def synced_write(cost: SyncCost, directory: str, kind: str, sync: str) -> Finding:
    """Evaluate measured writes, and report the publish rate that they allow."""
    p50, p99 = cost.p50 * 1e3, cost.p99 * 1e3
    on = f" ({kind})" if kind else ""
    text = f"p50 {p50:.3g} ms, p99 {p99:.3g} ms, longest {cost.longest * 1e3:.3g} ms in {directory}{on}"
    if sync == "always":
        text += (
            f". A client that waits for each acknowledgement publishes about {1 / cost.p50:,.0f} messages a "
            "second. Concurrent publishes share one sync, so a client that does not wait is faster"
        )
    figures = {
        "p50_seconds": cost.p50,
        "p99_seconds": cost.p99,
        "longest_seconds": cost.longest,
        "writes": float(cost.writes),
    }
    level: Level = "ok"
    cure = ""
    if cost.p50 < _NO_SYNC_P50_SECONDS:
        level = "warn"
        cure = "No disk is that fast. Check that syncs reach the disk (write cache, virtual disk settings)"
    elif cost.p99 > _SLOW_P99_SECONDS:
        level = "warn"
        cure = 'Use a dedicated disk, an SSD with power-loss protection, or sync = "interval" in [journal]'
    return Finding(check="synced write", level=level, text=text, cure=cure, figures=figures)


def space(config: Config, directory: str) -> Finding:
    """Check that the disk has free space for the next segments."""
    free = shutil.disk_usage(directory).free
    segment = config.journal.segment_size
    text = f"{free / 1e9:,.1f} GB free, segments of {segment / 1e6:,.0f} MB"
    level: Level = "ok"
    cure = ""
    if free < segment * _SEGMENTS_WANTED:
        level = "fail" if free < segment * _SEGMENTS_NEEDED else "warn"
        cure = "Free disk space, or set retain, retain_size or a smaller segment_size in [journal]"
    return Finding(check="free space", level=level, text=text, cure=cure, figures={"free_bytes": float(free)})


def open_files() -> Finding:
    """Check the limit of open files against the connections and segments of a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _FILES_BESIDE
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding(check="open files", level="ok", text=f"enough for {connections_max:,} connections")
    return Finding(
        check="open files",
        level="warn",
        text=f"at most {hard:,}, so fewer than {connections_max:,} connections",
        cure=f"Raise the hard limit to {wanted:,} (LimitNOFILE= of a service, ulimit -Hn)",
        figures={"open_files_max": float(hard)},
    )


def clock(jumped: float, seconds: float, data: str) -> Finding:
    """Check that the wall clock runs evenly, is synchronised, and is not behind the log."""
    level: Level = "fail"
    if abs(jumped) > _JUMP_SECONDS:
        text = f"the wall clock moved by {jumped:+.3f} s against the monotonic clock in {seconds:g} s"
        cure = "Run exactly one time service"
    elif (ahead := _newest(data) - time.time()) > _FUTURE_SECONDS:
        text = f"a file of the log is {ahead:,.0f} s newer than the wall clock"
        cure = "Set the clock before you start the server, or message timestamps will go back"
    elif _unsynchronised():
        level, text = "warn", "runs evenly, but the kernel reports that it is not synchronised"
        cure = "Run a time service such as chrony"
    else:
        level, text, cure = "ok", "runs evenly", ""
    return Finding(check="clock", level=level, text=text, cure=cure, figures={"jump_seconds": jumped})


def _newest(data: str) -> float:
    """Return the time of the last write to a file of the data directory. 0 if it has no files."""
    try:
        with os.scandir(data) as entries:
            return max((e.stat(follow_symlinks=False).st_mtime for e in entries), default=0.0)
    except OSError:
        return 0.0


def _unsynchronised() -> bool:
    """Return whether the kernel reports an unsynchronised clock. False if the kernel does not report it."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
        nothing_set = ctypes.create_string_buffer(512)  # struct timex with all fields 0 changes nothing
        return bool(adjtimex(nothing_set) == _TIME_ERROR)
    except (AttributeError, OSError):
        return False


def certificates(config: Config) -> Iterator[Finding]:
    """Check the expiration of the transports' certificates."""
    for transport in config.transports:
        if transport.certificate is None:
            continue
        try:
            expires = not_after(transport.certificate)
        except (ConfigurationError, OSError) as error:
            yield Finding(check="certificate", level="fail", text=str(error), cure="Correct the path")
            continue
        yield _expiry("certificate", transport.certificate, expires, "Renew it, then send the server SIGHUP")


def tokens(config: Config) -> Iterator[Finding]:
    """Check the expiration of access tokens: list expired and soon expiring tokens, else a summary."""
    if config.authentication is None:
        return
    path = config.authentication.tokens_file
    try:
        expirations = read_tokens(path).expirations()
    except ConfigurationError as error:
        yield Finding(check="tokens", level="fail", text=str(error), cure="Correct the file")
        return
    soon = []
    for name, micros in expirations.items():
        expires = datetime.fromtimestamp(micros / 1e6, UTC)
        found = _expiry("token", name, expires, "Create a new token with `tickertape token new`")
        if found.level != "ok":
            soon.append(Finding(check="token", level="warn", text=found.text, cure=found.cure))
    yield from soon
    if not soon:
        yield Finding(
            check="tokens", level="ok", text=f"no token in {path} expires within {_EXPIRY_WARN_DAYS} days"
        )


def _expiry(check: str, name: str, expires: datetime, cure: str) -> Finding:
    days = (expires - datetime.now(UTC)).total_seconds() / _DAY_SECONDS
    level: Level = "fail" if days <= 0 else "warn" if days < _EXPIRY_WARN_DAYS else "ok"
    text = f"{name} expires in {days:,.0f} days, on {expires:%Y-%m-%d}"
    if days <= 0:
        text = f"{name} expired on {expires:%Y-%m-%d %H:%M} UTC"
    cure = "" if level == "ok" else cure
    return Finding(check=check, level=level, text=text, cure=cure, figures={"days_left": days})


def versions() -> Finding:
    """List the versions to include in a bug report."""
    parts = [
        f"tickertape {__version__}",
        f"Python {platform.python_version()}",
        f"Linux {platform.release()}",
    ]
    for name in _PACKAGES:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return Finding(check="versions", level="ok", text=", ".join(parts))
