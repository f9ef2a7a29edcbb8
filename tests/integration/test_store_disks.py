"""Stores of a client on disks that are full, and in files of somebody else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.namespaces import run_inside, why_no_small_disk

NOBODY = 65534
SECONDS_MAX = 55.0
Open = Callable[[Path], object]
STORES: dict[str, Open] = {
    "publishes in files": tt.FilePublishStore,
    "publishes in both": tt.HybridPublishStore,
    "bookmarks in a log": tt.LoggedBookmarkStore,
    "bookmarks in a ring": tt.RingBookmarkStore,
}


@pytest.mark.slow
def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    told = run_inside("tests.helpers.full_disk", str(tmp_path), seconds=SECONDS_MAX)
    assert told.split() == ["publishes", "hybrid", "logged", "ring"]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user may look into."""
    path = Path(tempfile.mkdtemp(prefix="stores-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def _as_somebody_else(act: Callable[[], None]) -> str:
    """What `act` raises as a user who owns nothing here; empty for nothing."""
    hear, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
        except tt.TickertapeError as error:
            os.write(tell, f"{error.code}: {error}".encode())
        except BaseException as error:  # noqa: BLE001 - a forked child never returns
            os.write(tell, repr(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with open(hear, "rb") as pipe:
        return pipe.read().decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("kind", STORES)
def test_files_of_another_user_are_told_and_left_alone(kind: str, shared: Path) -> None:
    make = STORES[kind]
    path = shared / "store"
    store = make(path)
    if isinstance(store, tt.FilePublishStore | tt.HybridPublishStore):
        store.attach("pricing-1")
    store.close()  # type: ignore[attr-defined]
    before = {file: file.stat() for file in shared.rglob("*")}
    told = _as_somebody_else(lambda: (make(path), None)[1])
    assert told.startswith("store_failed: ")
    assert str(path) in told
    assert "Permission denied" in told
    told = _as_somebody_else(lambda: (make(shared / "new"), None)[1])
    assert told.startswith("store_failed: ")
    assert "Permission denied" in told
    after = {file: file.stat() for file in shared.rglob("*")}
    assert {f: (s.st_size, s.st_mtime_ns) for f, s in before.items()} == {
        f: (s.st_size, s.st_mtime_ns) for f, s in after.items()
    }
