"""Client stores on full disks and in files of other users."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.namespaces import run_inside, why_no_small_disk

NO_OWNER = 65534
SECONDS_MAX = 55.0
Open = Callable[[Path], object]
STORES: dict[str, Open] = {
    "publishes in files": tt.FilePublishStore,
    "publishes in both": tt.HybridPublishStore,
    "bookmarks in a log": tt.LoggedBookmarkStore,
    "bookmarks in a ring": tt.RingBookmarkStore,
}


@pytest.mark.slow
def test_client_stores_on_a_full_disk_report_the_error_and_lose_nothing(tmp_path: Path) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    finished = run_inside("tests.helpers.full_disk", str(tmp_path), seconds=SECONDS_MAX)
    assert finished.split() == ["publishes", "hybrid", "logged", "ring"]


@pytest.fixture
def shared() -> Iterator[Path]:
    """Yield a directory that every user can read."""
    path = Path(tempfile.mkdtemp(prefix="stores-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def _as_another_user(act: Callable[[], None]) -> str:
    """Run `act` as another user, and return the text of its error or an empty text."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NO_OWNER)
            os.setuid(NO_OWNER)
            act()
        except tt.TickertapeError as error:
            os.write(write_end, f"{error.code}: {error}".encode())
        except BaseException as error:  # noqa: BLE001 - a forked child never returns
            os.write(write_end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with open(read_end, "rb") as pipe:
        return pipe.read().decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the user")
@pytest.mark.parametrize("kind", STORES)
def test_client_stores_refuse_files_of_another_user(kind: str, shared: Path) -> None:
    make = STORES[kind]
    path = shared / "store"
    store = make(path)
    if isinstance(store, tt.FilePublishStore | tt.HybridPublishStore):
        store.attach("pricing-1")
    store.close()  # type: ignore[attr-defined]
    before = {file: file.stat() for file in shared.rglob("*")}
    error_text = _as_another_user(lambda: (make(path), None)[1])
    assert error_text.startswith("store_failed: ")
    assert str(path) in error_text
    assert "Permission denied" in error_text
    error_text = _as_another_user(lambda: (make(shared / "new"), None)[1])
    assert error_text.startswith("store_failed: ")
    assert "Permission denied" in error_text
    after = {file: file.stat() for file in shared.rglob("*")}
    assert {f: (s.st_size, s.st_mtime_ns) for f, s in before.items()} == {
        f: (s.st_size, s.st_mtime_ns) for f, s in after.items()
    }
