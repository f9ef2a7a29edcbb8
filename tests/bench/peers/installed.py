"""Servers and clients that are installed from packages, in an environment of their own."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
ENVIRONMENT: Final = ROOT / ".venv-peers"
"""Made by script/bench from requirements/peers.txt."""
PROGRAM_SECONDS_MAX: Final = 60
NOT_INSTALLED: Final = "not installed"


def python() -> Path:
    """Return the interpreter that has the clients."""
    return ENVIRONMENT / "bin" / "python"


@cache
def packages_folder() -> Path | None:
    """Return the folder of the installed packages, or None without the environment."""
    return next(ENVIRONMENT.glob("lib/python3*/site-packages"), None)


@cache
def program_in_package(package: str, name: str) -> Path | None:
    """Return the path of a program inside an installed package, or None."""
    folder = packages_folder()
    if folder is None:
        return None
    places = [folder / package, ENVIRONMENT / "bin"]
    found = (path for place in places for path in sorted(place.rglob(name)) if path.is_file())
    return next(found, None)


@cache
def package_version(name: str) -> str:
    """Return the version of an installed package, or `not installed`."""
    folder = packages_folder()
    wanted = name.replace("-", "_").lower()
    for path in folder.glob("*.dist-info") if folder else ():
        package, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        if package.lower() == wanted:
            return version
    return NOT_INSTALLED


def missing_client(name: str) -> str:
    """Return that a client is not installed, or an empty text."""
    return f"{name} is not installed" if package_version(name) == NOT_INSTALLED else ""


def first_line(command: list[str]) -> str:
    """Return the first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX, check=True)
    return done.stdout.partition("\n")[0].strip()


def debian_version(package: str) -> str:
    """Return the version of an installed package of Debian, or an empty text."""
    if shutil.which("dpkg-query") is None:
        return ""
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version}", package],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""
