"""A server on a disk of 64 MiB that fills up: `python -m tests.faults.full_log DIRECTORY SEED LIVES`.

Runs in a mount namespace of its own (`tests.helpers.namespaces`). Judges by `assert`, and prints the number
of each event.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

import tickertape as tt
from tests.faults.log_on_disk import read_log
from tests.helpers.admin import ask, stats_of
from tests.helpers.processes import run_tickertape
from tickertape.base.limits import MIB
from tickertape.testing import RunningServer, running_server, wait_until

SECONDS: Final = 30.0
TOPIC: Final = "orders"
REFUSED: Final = "Cannot prepare the next segment: No space left on device. Free disk space"
BODY_BYTES_MAX: Final = 200_000
BODY_BYTES_MIN: Final = 100
"""Bytes that must fit, or the disk counts as full."""


class FullLog:
    """One run: a disk fills up at a random place, and has space again."""

    def __init__(self, disk: Path, server: RunningServer, rng: Random) -> None:
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.server = server
        self._ballast = disk / "ballast"
        self.acknowledged: list[bytes] = []
        """Messages that `bare` published and that were acknowledged."""
        self.refused: list[bytes] = []
        """Messages that it published and that were refused."""
        self.kept: list[bytes] = []
        """Messages of `keeper`, which has a store and reconnects by itself."""
        self.heard: list[bytes] = []
        """Messages that a subscriber received from the beginning."""
        self._bare = tt.Client("bare", server.uri, timeout=SECONDS)
        self._keeper = tt.HAClient.memory_backed(
            "keeper", servers=server.uri, reconnect_delay=0.05, timeout=SECONDS
        )
        self._keeper.connect_and_logon()
        self._keeper.bookmark_subscribe(TOPIC, tt.EPOCH, sub_id="all", on_message=self._on_message)

    def _on_message(self, message: tt.Message) -> None:
        self.heard.append(message.data)
        message.discard()

    def close(self) -> None:
        """End the clients."""
        self._bare.close()
        self._keeper.close()

    # -- publishing -----------------------------------------------------------------------------------

    def publish(self, size: int) -> bool:
        """Publish a message. Return False when the server has no space."""
        number = len(self.acknowledged) + len(self.refused)
        body = b"bare %d " % number + b"x" * size
        self._bare.publish(TOPIC, body)
        refused = ""
        try:
            self._bare.publish_flush()
        except tt.PublishRejected as error:
            refused = str(error)
        except tt.TimedOut:
            # The server accepted the message before it detected the full disk, so it waits and is not
            # refused.
            self.counts["waited for space"] += 1
            self._free_some_space()
            self._bare.publish_flush()
        (self.refused if refused else self.acknowledged).append(body)
        assert not refused or REFUSED in refused
        return not refused

    def _free_some_space(self) -> None:
        """Free space for a small segment or two. The other programs keep the rest until the end."""
        left = self._ballast.stat().st_size - 2 * MIB
        assert left > 2 * MIB
        os.truncate(self._ballast, left)

    def keep(self, least: int = 0) -> None:
        """Let the keeper publish another message, without waiting."""
        self.kept.append(b"kept %d " % len(self.kept) + b"y" * (least + self.rng.randrange(1_000)))
        self._keeper.publish(TOPIC, self.kept[-1])

    def take_all_space(self) -> None:
        """Let another program use the rest of the disk."""
        with open(self._ballast, "ab", buffering=0) as file:
            for size in (MIB, 4096):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue  # full

    def fill(self) -> None:
        """Publish until even a small message has no space, because of the log or of other programs."""
        by_others = self.rng.random() < 0.5
        left = self.rng.randrange(1, 200) if by_others else -1
        size = BODY_BYTES_MAX
        while size > BODY_BYTES_MIN:
            if left == 0:
                self.take_all_space()
                self.counts["filled by others"] += 1
            left -= 1
            if self.rng.random() < 0.1:
                self.keep()
            if not self.publish(self.rng.randrange(size // 2, size)):
                size //= 2
        while self.publish(BODY_BYTES_MIN):
            pass
        self.counts["filled by the log"] += not by_others
        if self.rng.random() < 0.5:
            self.take_all_space()
            self.counts["not a block left"] += 1

    # -- invariants -----------------------------------------------------------------------------------

    def stays_full(self) -> None:
        """Check that publishes are refused with an error, and everything else continues."""
        assert not self.publish(BODY_BYTES_MIN)
        self.keep(2 * BODY_BYTES_MIN)  # a smaller message than the refused one may fit
        transaction = self._bare.transaction("while full")
        transaction.publish(TOPIC, b"bare in a transaction " + b"z" * 1_000)
        with pytest.raises((tt.JournalFull, tt.StagingFull)):
            transaction.commit()
        transaction.abort()
        server = self.server
        assert ask(server, "/health")[0] == 200
        assert ask(server, "/ready")[0] == 200
        assert stats_of(server).journal.full
        assert b"\ntickertape_journal_full 1.0\n" in ask(server, "/metrics")[2]
        assert self._keeper.unpersisted_count() > 0
        self.judge([message.data for message in self._bare.replay(TOPIC)])
        self.judge_files()

    def judge(self, bodies: list[bytes]) -> None:
        """Check the log: acknowledged messages are present, refused ones are not, all once and in order."""
        assert [body for body in bodies if body.startswith(b"bare ")] == self.acknowledged
        kept = [body for body in bodies if body.startswith(b"kept ")]
        assert kept == self.kept[: len(kept)]
        assert len(kept) >= len(self.kept) - self._keeper.unpersisted_count()

    def judge_files(self) -> None:
        """Check the files with an independent reader."""
        self.judge([message.body for message in read_log(self.server.data) if message.topic == TOPIC])

    def restart(self) -> None:
        """Stop or kill the server, and start it, on the full disk."""
        self._bare.close()
        before = len(self.server.errors())
        if self.rng.random() < 0.5:
            assert self.server.stop() == 0
            self.counts["stopped while full"] += 1
        else:
            self.server.kill()
            self.counts["killed while full"] += 1
        self.judge_files()
        self.server.start()
        wait_until(
            lambda: ' journal_full text="Cannot prepare the next' in self.server.errors()[before:], SECONDS
        )
        self._bare = tt.Client("bare", self.server.uri, timeout=SECONDS)

    def resumes_with_space(self) -> None:
        """Check that publishing resumes in the same process, and that kept messages are stored."""
        pid, before = self.server.pid, len(self.server.errors())
        self._ballast.unlink()
        wait_until(lambda: self.publish(BODY_BYTES_MAX // 2), SECONDS)
        self.keep()
        wait_until(self._flushed, SECONDS)
        transaction = self._bare.transaction("while full")
        transaction.publish(TOPIC, b"transaction")
        assert transaction.commit().message_count == 1
        assert self.server.pid == pid
        wait_until(lambda: " journal_resumed" in self.server.errors()[before:], SECONDS)
        assert not stats_of(self.server).journal.full
        everything = [message.data for message in self._bare.replay(TOPIC)]
        assert self._keeper.unpersisted_count() == 0
        self.judge(everything)
        assert everything[-1] == b"transaction"
        wait_until(lambda: len(self.heard) >= len(everything), SECONDS)
        assert self.heard == everything

    def _flushed(self) -> bool:
        try:
            self._keeper.publish_flush()
        except tt.Disconnected:  # sent away once more
            return False
        return True


def live(directory: Path, disk: Path, rng: Random) -> Counter[str]:
    """Fill the disk once, from an empty one."""
    place = disk / "data"
    place.mkdir()
    link = directory / "data"  # the output of the server is beside the link, not on the small disk
    link.unlink(missing_ok=True)
    link.symlink_to(place)
    with open(disk / "ballast", "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, rng.randrange(8, 48) * MIB)
    with running_server(link) as server:
        life = FullLog(disk, server, rng)
        try:
            life.fill()
            life.stays_full()
            life.restart()
            life.stays_full()
            life.resumes_with_space()
        finally:
            life.close()
        assert server.stop() == 0
        life.judge_files()
    code, output, _ = run_tickertape("journal", "verify", str(link))
    assert code == 0, output
    shutil.rmtree(place)
    return life.counts


def main(directory: Path, seed: int, lives: int) -> None:
    """Run `lives` runs on one small disk."""
    disk = directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    rng, counts = Random(seed), Counter[str]()
    for number in range(lives):
        try:
            counts += live(directory, disk, rng)
        except BaseException as failure:
            failure.add_note(f"life {number} of seed {seed}")
            raise
    for what, times in sorted(counts.items()):
        print(f"{times}\t{what}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
