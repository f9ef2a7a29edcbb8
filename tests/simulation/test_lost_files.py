"""Lost files of the log after a kill or a power loss: missing, empty, zeros or unreadable.

The start is refused, or every message of an undamaged start is present.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.journal_world import Key, World, read_log
from tickertape.base.errors import JournalError
from tickertape.base.interfaces import Now
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.log_end import LAST_SEGMENT_FILE
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

HARMS = ("missing", "empty", "zeros", "unreadable")
LIVES = 2


def shown(disk: StrictDisk) -> tuple[list[Key], list[str]]:
    """Return the messages and the reports of a start on a disk."""
    identity = open_identity(disk, owner="world", create=False, new_id=bytes(16))
    recovered = recover_journal(disk, identity.journal_id)
    journal = Journal(recovered, Now(0.0, 1), segment_bytes=16_384)
    found = [
        key
        for _, batch in read_log(journal, disk)
        for key in zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True)
    ]
    return found, recovered.report


def recorded(seed: int) -> StrictDisk:
    """Return a disk after the end of its process or its power."""
    world = World(seed)
    rng = Random(seed)
    for _ in range(3):
        world.live(rng.randrange(20, 200))
        if rng.random() < 0.5:
            world.crash()
        else:
            world.kill()
    return world.disk


def outcome(disk: StrictDisk, expected: list[Key]) -> str:
    try:
        found, report = shown(disk)
    except JournalError:
        return "refused"
    except OSError:
        if not disk.counts["unreadable"]:
            raise
        return "could not be read"
    assert found == expected
    return "reported" if any("cannot be read" in line for line in report) else "nothing lost"


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(12, every_run=1))
def test_log_with_a_lost_file_is_refused_at_start_or_loses_nothing(part: int) -> None:
    seen: dict[str, Counter[str]] = {how: Counter() for how in HARMS}
    faults: Counter[str] = Counter()
    for seed in range(part * LIVES, (part + 1) * LIVES):
        left = recorded(seed)
        expected, _ = shown(left.kill_clone())
        begun = {path for path, data in left.contents().items() if data[:6] == b"TKTSEG" and "/" in path}
        for path in left.contents():
            if path == "lock" or path.startswith("quarantine"):
                continue
            for how in HARMS:
                disk = left.kill_clone(Random(seed))
                disk.counts = Counter()
                if how == "missing":
                    disk.lose(path)
                else:
                    disk.harm(path, how)
                came = outcome(disk, expected)
                if path in begun:
                    assert came == "refused" or how == "unreadable", (seed, path, how)
                seen[how]["begun.bin: " * (path == LAST_SEGMENT_FILE) + came] += 1
                faults += disk.counts
                if how != "missing":
                    mended = left.kill_clone(Random(seed))
                    mended.harm(path, how)
                    mended.mend()
                    assert shown(mended)[0] == expected
    for how in HARMS:
        assert seen[how]["refused" if how != "unreadable" else "could not be read"] > LIVES, seen
    for how in ("empty", "zeros"):
        assert set(seen[how]) >= {"begun.bin: reported"}
        assert seen[how]["begun.bin: nothing lost"] == 0
    assert set(seen["missing"]) >= {"begun.bin: nothing lost"}
    assert all(faults[name] for name in ("read_as_zeros", "read_as_empty", "unreadable"))
