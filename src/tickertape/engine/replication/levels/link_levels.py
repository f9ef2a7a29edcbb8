"""Link levels: downgrades and upgrades of synchronous links, by policy and by an operator.

A change is a control record. It takes effect when the record is persisted, so that it survives each restart
that sees acknowledgements of it.

Invariants:
- Each change of a level is a record of the log, an event and a counter.
- The level after a restart is the one of the last persisted record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tickertape.base.errors import BadOption, JournalFull, NotReady
from tickertape.base.text_format import listed, shown
from tickertape.batch import KIND_CONTROL, BatchBuilder
from tickertape.engine.limits import level_check_seconds, link_report_bytes
from tickertape.engine.replication.levels.backlog import LinkBacklog
from tickertape.engine.replication.levels.policy import DowngradePolicy, has_passed
from tickertape.engine.replication.links.link_row import Level
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.links.sync_topics import SyncTopics
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.replication_records import (
    DowngradedRecord,
    LevelReason,
    LevelRecord,
    encode_record,
    level,
)
from tickertape.journal.journal import AcceptedBatch


class _SyncLink:
    """A synchronous link."""

    def __init__(self, name: str, number: int, policy: DowngradePolicy | None) -> None:
        self.name = name
        self.number = number
        self.policy = policy
        self.backlog = LinkBacklog()
        self.accepted_end = 0
        """Position after the last accepted message for which acknowledgements wait for the link."""
        self.downgrades = 0


class LinkLevels:
    """The levels of all synchronous links of one server."""

    def __init__(
        self,
        parts: LinkParts,
        facts: LogFacts,
        topics: SyncTopics,
        policies: Mapping[str, DowngradePolicy],
    ) -> None:
        """`policies`: by the names of destinations."""
        self._parts = parts
        self._facts = facts
        self._topics = topics
        self._sync = topics.links
        self._commits = parts.journal.commits
        self._links = {
            name: _SyncLink(name, number, policies.get(name)) for name, number in topics.numbers.items()
        }
        self._pending: list[tuple[int, LevelRecord]] = []
        """Records that are not persisted yet, with the end of the log after them."""
        self._begun = self._checked = 0.0
        for link in self._links.values():
            if isinstance(facts.levels.get(link.name), DowngradedRecord):
                self._sync.downgrade(link.number)

    def begin(self) -> None:
        """Note the start of the server, before its first row. Destinations may lack all earlier rows."""
        self._begun = self._checked = self._parts.clock.mono
        for link in self._links.values():
            link.accepted_end = self._commits.accepted_end
        self.log_persisted()

    # -- inputs ---------------------------------------------------------------------------------------

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        for position, batch, _ in batches:
            if batch is None:
                continue  # a transaction has no synchronous topics
            waiting = self._topics.links_of(batch.topics)
            if waiting:
                for link in self._links.values():
                    if waiting >> link.number & 1:
                        link.accepted_end = position + batch.count

    def log_persisted(self) -> bool:
        """Note that more of the log is persisted. Return whether a level has changed."""
        end, mono = self._commits.persisted_end, self._parts.clock.mono
        for link in self._links.values():
            link.backlog.note(min(end, link.accepted_end), mono)
        self._parts.clock.announce(self)
        due = [record for at, record in self._pending if at <= end]
        if due:
            self._pending = [(at, record) for at, record in self._pending if at > end]
            for record in due:
                self._apply(record)
        return bool(due)

    def change(self, destination: str, *, downgraded: bool) -> None:
        """Downgrade or upgrade a link by a command of an operator.

        Raises `BadOption` without a synchronous topic, `NotReady` for too early an upgrade and during a stop,
        or `JournalFull`."""
        action = "downgrade" if downgraded else "upgrade"
        link = self._links.get(destination)
        if link is None:
            raise BadOption(
                f"Cannot {action} the link to {shown(destination)}: no topic of it is synchronous. "
                f"Use {listed([shown(name) for name in self._links])}."
            )
        last = self._facts.levels.get(destination)
        if isinstance(last, DowngradedRecord):
            if downgraded and last.reason == "operator":
                return
            covered = self._sync.position(link.number)
            if not (downgraded or has_passed(last, covered)):
                raise NotReady(
                    f"Cannot upgrade the link to {shown(destination)}: the destination lacks messages from "
                    f"before the downgrade (it has everything before position {covered:,} of "
                    f"{last.position:,}). Upgrade the link when it has them."
                )
        elif not downgraded:
            return
        if self._commits.stopping:
            raise NotReady(f"Cannot {action} a link: the server is stopping. Wait until it runs again.")
        if not self._commits.can_accept(link_report_bytes):
            raise JournalFull(
                f"Cannot record the {action} of a link: {self._commits.full_reason}. Then try again."
            )
        self._append(link, "operator", downgraded=downgraded)

    # -- policy ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) of the next check, or None."""
        if self._commits.stopping:
            return None
        for link in self._links.values():
            waits = link.backlog.end > self._sync.position(link.number)
            if link.policy is not None and (waits or self._sync.is_downgraded(link.number)):
                return self._checked + level_check_seconds
        return None

    def wake(self) -> None:
        """Check the policies that are due."""
        at, mono = self.next_deadline(), self._parts.clock.mono
        if at is None or at > mono:
            return
        self._checked = mono
        if not self._commits.can_accept(link_report_bytes):
            return
        for link in self._links.values():
            if link.policy is None:
                continue
            last, covered = self._facts.levels.get(link.name), self._sync.position(link.number)
            age = link.backlog.seconds(covered, mono)
            downgraded = link.policy.decide(last, covered, age, mono - self._begun)
            if downgraded is not None:
                self._append(link, "policy", downgraded=downgraded)

    # -- outputs --------------------------------------------------------------------------------------

    def level(self, destination: str) -> Level:
        """Return the level of a link."""
        link = self._links.get(destination)
        if link is None:
            return "async"
        return "downgraded" if self._sync.is_downgraded(link.number) else "sync"

    def downgrades(self, destination: str) -> int:
        """Return the number of downgrades of a link since the start of the server."""
        link = self._links.get(destination)
        return 0 if link is None else link.downgrades

    # -- records --------------------------------------------------------------------------------------

    def _append(self, link: _SyncLink, reason: LevelReason, *, downgraded: bool) -> None:
        self._commits.end_open()
        covered, position = self._sync.position(link.number), self._commits.accepted_end
        last = self._facts.levels.get(link.name)
        if isinstance(last, DowngradedRecord) and downgraded:
            position = last.position  # acknowledgements have not waited since then
        record = level(link.name, position, covered, reason, downgraded=downgraded)
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, encode_record(record), kind=KIND_CONTROL)
        self._parts.writer.append_control(builder.build())
        self._facts.note(record)
        self._pending.append((self._commits.accepted_end, record))
        self._parts.clock.announce(self)

    def _apply(self, record: LevelRecord) -> None:
        """Let a persisted record take effect."""
        link = self._links[record.destination]
        downgraded = isinstance(record, DowngradedRecord)
        if downgraded:
            self._sync.downgrade(link.number)
            link.downgrades += 1
        else:
            self._sync.upgrade(link.number)
        fields: dict[str, str | int] = {
            "destination": link.name,
            "cause": record.reason,
            "position": record.position,
            "covered": record.covered,
        }
        self._parts.outbox.log_event("link_downgraded" if downgraded else "link_upgraded", downgraded, fields)
