"""The product's bookmark stores pass the bookmark store checks, and a defective store fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.testing import check_bookmark_store


@pytest.mark.behaviour(28)
def test_memory_bookmark_store_passes_the_checks() -> None:
    check_bookmark_store(lambda _: tt.MemoryBookmarkStore(), survives_restart=False)


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("sync", ["never", "always"])
def test_logged_bookmark_store_passes_the_checks(tmp_path: Path, sync: str) -> None:
    check_bookmark_store(
        lambda name: tt.LoggedBookmarkStore(tmp_path / name, sync=sync)  # type: ignore[arg-type]
    )


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("sync", ["never", "always"])
def test_ring_bookmark_store_passes_the_checks_except_filtering_after_restart(
    tmp_path: Path, sync: str
) -> None:
    check_bookmark_store(
        lambda name: tt.RingBookmarkStore(tmp_path / name, sync=sync),  # type: ignore[arg-type]
        filters_after_restart=False,
    )
    with pytest.raises(AssertionError, match="undiscarded messages are redelivered after a restart"):
        check_bookmark_store(lambda name: tt.RingBookmarkStore(tmp_path / f"x{name}"))


class Forgetful(tt.MemoryBookmarkStore):
    """Drops messages at or below the highest seen sequence, discarded or not."""

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


def test_check_bookmark_store_rejects_store_that_drops_undiscarded_messages() -> None:
    with pytest.raises(AssertionError, match="only undiscarded messages are redelivered"):
        check_bookmark_store(lambda _: Forgetful(), survives_restart=False)


@pytest.mark.parametrize("kind", [tt.MemoryBookmarkStore, tt.BookmarkStore])
def test_memory_bookmark_store_is_a_bookmark_store(kind: type) -> None:
    assert isinstance(tt.MemoryBookmarkStore(), kind)
