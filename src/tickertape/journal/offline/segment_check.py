"""Segment check: reads one segment and reports its damage, including damage after other damage.

It writes nothing and classifies torn tails as recovery does (`segment_scan.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from tickertape.base.errors import BadBatch, CorruptBatch
from tickertape.base.interfaces import Disk
from tickertape.batch import MessageBatch
from tickertape.batch.format import FLAG_DELTA
from tickertape.journal.format.files import open_file
from tickertape.journal.format.replication_records import opened_by
from tickertape.journal.format.segment import (
    CONTROL_TOPIC,
    FLAG_CONTINUES,
    CommitHeader,
    CommitKind,
    SegmentHeader,
    decode_commit,
    decode_footer,
    footer_bytes,
    segment_path,
)
from tickertape.journal.index.segment_index import SegmentIndex, late_spans, publisher_spans
from tickertape.journal.limits import commit_header_bytes
from tickertape.journal.offline.report import SegmentSummary, VerifyFinding
from tickertape.journal.recovery.segment_scan import Ending, ReadAt, ScannedCommit, SegmentScan, Verdict
from tickertape.journal.recovery.survey import SegmentSurvey, read_index

Progress = Callable[[int], object]
"""Called with the number of additional segment bytes processed."""


class OpenFile(NamedTuple):
    """A file opened for reading."""

    read: ReadAt
    size: int


@contextlib.contextmanager
def opened(disk: Disk, path: str) -> Iterator[OpenFile]:
    """Open the file `path` of `disk` for reading."""
    with open_file(disk, path) as handle:
        yield OpenFile(lambda offset, size: disk.read(handle, offset, size), disk.size(handle))


class SegmentChecker:
    """Checks one segment with a valid header. `highest`: last sequence of each publisher in earlier
    segments. `raised`: ends of holes that control records of earlier segments opened. None: unknown."""

    def __init__(
        self,
        disk: Disk,
        file: SegmentSurvey,
        highest: Mapping[int, int],
        raised: Mapping[int, int] | None,
        *,
        begun_after: bool,
    ) -> None:
        assert file.header is not None
        self.header: SegmentHeader = file.header
        self.path = segment_path(file.number)
        self.damage: list[VerifyFinding] = []
        self.notes: list[VerifyFinding] = []
        self.seal: CommitHeader | None = None
        self.highest: dict[int, int] = {}
        """Last sequence of each publisher with messages in this segment."""
        self.summary = SegmentSummary(
            number=file.number,
            file=self.path,
            state="active",
            bytes=file.size,
            epoch=self.header.epoch,
            first_position=self.header.first_position,
            end_position=self.header.first_position,
            begun=self.header.created,
            last=self.header.created,
        )
        self._disk = disk
        self._chain = file.chain
        self._before = highest
        self.raised = None if raised is None else dict(raised)
        """Ends of holes that control records up to the end of this segment opened. None: unknown."""
        self._begun_after = begun_after
        self._position: int | None = self.header.first_position
        self._at = 0
        self._chain_start: CommitHeader | None = None
        """The first commit of an unfinished chain."""
        self._before_chain: tuple[SegmentSummary, dict[int, int]] | None = None

    def by_seal(self, file: SegmentSurvey) -> bool:
        """Fill the summary from the seal. False if the seal is not sufficient."""
        index = read_index(self._disk, file)
        highest = None if index is None else index.highest_sequences()
        if file.seal is None or highest is None:
            return False
        self.seal, self.highest, self.raised = file.seal, highest, None
        summary = self.summary
        summary.state, summary.used = "sealed", file.seal.end
        summary.end_position, summary.last = file.seal.first_position, file.seal.timestamp
        summary.commits = file.seal.number - self.header.first_commit + 1
        summary.messages = summary.end_position - summary.first_position
        summary.publishers = len(highest)
        return True

    def go(self, progress: Progress) -> None:
        """Read and check every commit."""
        with opened(self._disk, self.path) as file:
            self.summary.bytes = file.size
            try:
                self._go(file, progress)
            except OSError as error:
                self._damaged(self._at, f"cannot be read: {error.strerror or error}")
            progress(max(0, file.size - self._at))
        self.summary.publishers = len(self.highest)

    def check_link(self, previous: SegmentChecker | None, *, first: bool) -> None:
        """Compare the header's facts about the previous segment with that segment."""
        header = self.header
        if first and header.previous_end:
            self._damaged(0, f"the log begins here, but segment {header.number - 1} existed before it")
        if previous is None or previous.seal is None:
            return
        seal = previous.seal
        if (header.previous_chain, header.previous_end) != (seal.crc, seal.end):
            self._damaged(0, f"it does not follow the present segment {previous.header.number}")
        elif (header.first_position, header.first_commit) != (seal.first_position, seal.number + 1):
            self._damaged(0, f"its positions do not continue those of segment {previous.header.number}")

    # -- commits --------------------------------------------------------------------------------------

    def _go(self, file: OpenFile, progress: Progress) -> None:
        start: CommitHeader | None = None
        while True:
            scan = SegmentScan(file.read, file.size, self.header, self._chain, start=start)
            for commit in scan.commits():
                self._take(commit)
                progress(commit.header.end - self._at)
                self._at = commit.header.end
            assert scan.ending is not None
            if not self._ended(scan.ending, file):
                return
            start = scan.next_header(scan.ending.end)
            if start is None:
                return
            progress(start.offset - self._at)
            self._at = start.offset
            self._position = None

    def _take(self, commit: ScannedCommit) -> None:
        header, summary = commit.header, self.summary
        if header.timestamp < summary.last and summary.commits:
            self._damaged(header.offset, f"{_name(header)}: log time decreases")
        if header.synced_through >= header.number:
            self._damaged(header.offset, f"{_name(header)} claims to be durable before its own sync")
        if self._position is not None and header.first_position != self._position:
            self._damaged(
                header.offset,
                f"{_name(header)} starts at position {header.first_position}, not {self._position}",
            )
        self._position = header.first_position + header.messages
        self._follow_chain(header)
        summary.commits += 1
        summary.used, summary.last, summary.end_position = header.end, header.timestamp, self._position
        if header.kind is CommitKind.DATA:
            self._take_batch(commit)
        elif header.kind is CommitKind.SEAL:
            self._take_seal(commit)

    def _follow_chain(self, header: CommitHeader) -> None:
        """Record the state before a chain: without its end, a chain is not part of the log."""
        if header.flags == 0 and self._chain_start is not None:
            self._damaged(header.offset, f"{_name(header)} is inside a transaction")
        if not header.flags & FLAG_CONTINUES:
            self._chain_start = self._before_chain = None
        elif self._chain_start is None:
            self._chain_start = header
            self._before_chain = msgspec.structs.replace(self.summary), dict(self.highest)

    def _leave_chain(self) -> None:
        """Drop the unfinished chain at the end of the segment from the results."""
        if self._chain_start is None or self._before_chain is None:
            return
        found, (self.summary, self.highest) = self.summary, self._before_chain
        self.summary.bytes = found.bytes
        what = (
            f"{found.messages - self.summary.messages} messages of a transaction without an end. The next "
            "start cuts them off."
        )
        self.notes.append(VerifyFinding(self.path, self._chain_start.offset, what))

    def _take_batch(self, commit: ScannedCommit) -> None:
        header = commit.header
        body = header.offset + commit_header_bytes
        self.summary.messages += header.messages
        try:
            batch = MessageBatch.parse(commit.body)
            batch.verify()
        except (BadBatch, CorruptBatch) as error:
            self._damaged(body, f"{_name(header)}: {error}")
            return
        flags = batch.message_flags
        if flags is not None and (flags & FLAG_DELTA).any():
            at = int((flags & FLAG_DELTA).argmax())
            self._damaged(body, f"{_name(header)}: message {at} is a delta, which no log contains")
        if batch.count != header.messages:
            self._damaged(
                header.offset, f"{_name(header)} holds {batch.count} messages, not {header.messages}"
            )
        self._take_holes(batch)
        for publisher, low, high in publisher_spans(batch):
            known = self.highest.get(publisher, self._before.get(publisher, 0))
            if low <= known:
                self._damaged(
                    body, f"{_name(header)}: publisher {publisher} has sequence {low} after {known}"
                )
            self.highest[publisher] = max(high, known)
        for publisher, low, high in late_spans(batch):
            known = self.highest.get(publisher, self._before.get(publisher, 0))
            if self.raised is not None and high > max(known, self.raised.get(publisher, 0)):
                what = f"publisher {publisher} has late sequences {low} to {high} above {known}"
                self._damaged(body, f"{_name(header)}: {what}")

    def _take_holes(self, batch: MessageBatch) -> None:
        """Note the ends of holes that control records of a batch open."""
        if self.raised is None or batch.kinds is None or CONTROL_TOPIC not in batch.topics:
            return
        for index in batch.kinds.nonzero()[0].tolist():
            if batch.topic(index) == CONTROL_TOPIC and (opened := opened_by(bytes(batch.body(index)))):
                publisher, end = opened
                self.raised[publisher] = max(end, self.raised.get(publisher, 0))

    def _take_seal(self, commit: ScannedCommit) -> None:
        self.seal, self.summary.state = commit.header, "sealed"
        body = commit.header.offset + commit_header_bytes
        footer = decode_footer(bytes(commit.body[-footer_bytes:]))
        if footer is None:
            return  # the scan ends here and reports it
        try:
            highest = SegmentIndex.decode(
                commit.body[: footer.index_bytes], commit.header.offset
            ).highest_sequences()
        except ValueError as error:
            self.notes.append(
                VerifyFinding(
                    self.path, body, f"the index is unreadable, the next start rebuilds it: {error}"
                )
            )
            return
        if highest is not None and highest != self.highest and not self.damage:
            self._damaged(body, "the last sequences in the index differ from the commits")

    # -- the end --------------------------------------------------------------------------------------

    def _ended(self, ending: Ending, file: OpenFile) -> bool:
        """Record the end of a scan. True if damage was found and more commits may follow."""
        if ending.verdict is Verdict.SEALED:
            if file.size > ending.end:
                what = f"{file.size - ending.end} bytes after the seal"
                how = "cuts them off" if ending.tail_end == ending.end else "moves them to quarantine"
                if self._begun_after:
                    self._damaged(ending.end, what)
                else:
                    self.notes.append(VerifyFinding(self.path, ending.end, f"{what}. The next start {how}."))
            return False
        if ending.verdict is Verdict.CORRUPT:
            self._damaged(ending.end, self._what_stands(ending, file))
            return ending.last is None or ending.last.kind is not CommitKind.SEAL
        if not self._begun_after:
            self._leave_chain()
        if self._begun_after:
            self._damaged(ending.end, "it does not end with a valid seal, although a later segment exists")
        elif ending.verdict is Verdict.TORN:
            size = ending.tail_end - ending.end
            what = (
                f"{size} bytes of an unfinished write, not proven to have been acknowledged. "
                "The next start moves them to quarantine."
            )
            self.notes.append(VerifyFinding(self.path, ending.end, what))
        return False

    def _what_stands(self, ending: Ending, file: OpenFile) -> str:
        """Describe the damage, including the affected positions if the header is intact."""
        found = decode_commit(file.read(ending.end, commit_header_bytes))
        if found is None or (found.salt, found.offset) != (self.header.salt, ending.end):
            return ending.detail
        last = found.first_position + found.messages - 1
        held = f" (positions {found.first_position} to {last})" if found.messages else ""
        return f"{ending.detail}. Its header is intact, its {found.body_bytes} bytes of body{held} are not."

    def _damaged(self, offset: int, what: str) -> None:
        self.damage.append(VerifyFinding(self.path, offset, what))


def _name(header: CommitHeader) -> str:
    return f"commit {header.number}"
