"""Our bookmark stores keep what every bookmark store promises, and the suite notices those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.testing import check_bookmark_store


@pytest.mark.behaviour(28)
def test_the_memory_store_conforms() -> None:
    check_bookmark_store(lambda _: tt.MemoryBookmarkStore(), survives_restart=False)


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("sync", ["never", "always"])
def test_the_logged_store_conforms(tmp_path: Path, sync: str) -> None:
    check_bookmark_store(
        lambda name: tt.LoggedBookmarkStore(tmp_path / name, sync=sync)  # type: ignore[arg-type]
    )


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("sync", ["never", "always"])
def test_the_ring_store_conforms_but_for_filtering_after_a_restart(tmp_path: Path, sync: str) -> None:
    check_bookmark_store(
        lambda name: tt.RingBookmarkStore(tmp_path / name, sync=sync),  # type: ignore[arg-type]
        filters_after_restart=False,
    )
    with pytest.raises(AssertionError, match="undiscarded messages are redelivered after a restart"):
        check_bookmark_store(lambda name: tt.RingBookmarkStore(tmp_path / f"x{name}"))


class Forgetful(tt.MemoryBookmarkStore):
    """Drops what is at or below the last seen, discarded or not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, int], int] = {}

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        if not isinstance(publishers, int):
            return super().log(sub_id, publishers, sequences)
        seen = self.seen.get((sub_id, publishers), -1)
        self.seen[sub_id, publishers] = max(seen, int(sequences[-1]))
        super().log(sub_id, publishers, sequences)
        return sequences > seen if seen >= 0 else None


def test_the_suite_notices_a_store_that_drops_undiscarded_messages() -> None:
    with pytest.raises(AssertionError, match="only undiscarded messages are redelivered"):
        check_bookmark_store(lambda _: Forgetful(), survives_restart=False)


@pytest.mark.parametrize("kind", [tt.MemoryBookmarkStore, tt.BookmarkStore])
def test_stores_are_bookmark_stores(kind: type) -> None:
    assert isinstance(tt.MemoryBookmarkStore(), kind)
