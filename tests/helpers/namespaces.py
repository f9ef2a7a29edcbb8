"""Processes in namespaces of their own, which end with their mounts, links and children.

Must never touch the system outside: mounts are private, the network is empty, and the end of the first
process inside ends all others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from tests.helpers.processes import source_environment

_PROBE_SECONDS_MAX: Final = 20.0
_SMALL_DISK: Final = "mount -t tmpfs -o size=1m tmpfs /tmp"
_LINK: Final = "ip link add name tt-probe-a type veth peer name tt-probe-b && ip link set tt-probe-a up"


def why_no_small_disk() -> str | None:
    """Return the reason why file systems cannot be mounted here, or None."""
    return _why_not(_SMALL_DISK, network=False)


def why_no_links() -> str | None:
    """Return the reason why network links cannot be created here, or None."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "`ip` or `nsenter` is not installed"
    return _why_not(_LINK, network=True)


def run_inside(module: str, *arguments: str, seconds: float, network: bool = False) -> str:
    """Run a module of the project to its end, and return its output. `AssertionError` with its errors if it
    fails.
    """
    done = subprocess.run(
        _inside(sys.executable, "-m", module, *arguments, network=network),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=source_environment(),
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}"
    return done.stdout


def _inside(*command: str, network: bool) -> list[str]:
    options = ["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        options.append("--map-root-user")
    if network:
        options.append("--net")
    return ["unshare", *options, *command]


def _why_not(probe: str, *, network: bool) -> str | None:
    if shutil.which("unshare") is None:
        return "`unshare` is not installed"
    command = _inside("sh", "-c", probe, network=network)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{probe}` in namespaces of its own does not come to an end"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return f"this machine does not allow namespaces with `{probe.split(' && ', maxsplit=1)[0]}`: {said[-1]}"
