"""Startup: opens the data directory of an instance, recovers the log and creates the broker.

It runs before any port is open, so it may block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from tickertape.base.errors import JournalCorrupt, NotAJournal
from tickertape.base.interfaces import Buffer, Disk
from tickertape.base.text_format import shown
from tickertape.base.version import __version__
from tickertape.engine.broker import Broker
from tickertape.engine.queues.checkpoints import recover_queues
from tickertape.engine.queues.state.checkpoint import QueueCheckpoint, decode_covered
from tickertape.engine.runtime.publisher_ids import PublisherDirectory, load_publishers
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.registry import LinkPolicy, LogonPolicy
from tickertape.engine.sow.recovery import StateFiles, StatePlan, plan_states
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import DiskJobExecutor
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.identity import IDENTITY_FILE, open_identity
from tickertape.journal.format.log_end import write_clean_shutdown
from tickertape.journal.format.queue_checkpoint import read_queues, remove_queues, write_queues
from tickertape.journal.format.segment import segment_path
from tickertape.journal.format.staging_file import find_staged
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_tier import ArchiveTier
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.recovery.recovery import RecoveredJournal, recover_journal
from tickertape.journal.recovery.state_files import (
    find_states,
    forget_named,
    make_durable,
    prepare_directories,
    read_states,
    set_aside_state,
)
from tickertape.journal.retention import RetentionPolicy, first_message
from tickertape.server.clock import clock
from tickertape.server.config.config import Config, JournalConfig
from tickertape.server.storage.archive_reads import ArchiveReads
from tickertape.server.storage.segment_reads import CachingDisk
from tickertape.server.storage.spill_files import SpillFiles

if TYPE_CHECKING:  # only servers that replicate import them
    from tickertape.engine.replication.links.replication import Replication
    from tickertape.server.network.links import LinkCredentials, OutgoingLinks

    class LinkRights(LinkPolicy, LinkCredentials, Protocol):
        """Policy and credentials of replication links."""


T = TypeVar("T")

_NO_SEGMENT: Final = (
    "The data directory exists but has no used segment, so the log starts at position 0. An earlier start "
    "was interrupted or the disk was full, or the log was deleted."
)


class OpenedInstance(NamedTuple):
    """An opened instance that is ready to serve."""

    broker: Broker
    disk: CachingDisk
    executor: DiskJobExecutor
    report: list[str]
    """Findings of the recovery, one line each."""
    spill: SpillFiles | None
    """Spill files of slow clients. None: no spilling."""
    archive: ArchiveReads | None = None
    """Archive of messages older than the log. None: no archive."""
    links: OutgoingLinks | None = None
    """Links to other servers. None: the server does not replicate."""


def salt() -> int:
    """Return 64 random bits for a new segment."""
    return int.from_bytes(os.urandom(8), "little")


def open_instance(
    config: Config,
    rights: LogonPolicy | None = None,
    rebuild: frozenset[str] = frozenset(),
    links: LinkRights | None = None,
) -> OpenedInstance:
    """Open the data directory of `config`. `rights`: policy that authenticates logons (see `Broker`).

    `rebuild`: SOW topics whose records are restored from the log alone. `links`: policy and credentials of
    replication links, for a server that replicates. Raises `JournalError`, `WrongJournal` or `OSError`.
    """
    disk = _data_directory(config)
    owner = f"instance {shown(config.instance.name)}"
    return open_on(
        disk, config, rights, owner=owner, new_id=os.urandom(16), salt=salt, rebuild=rebuild, links=links
    )


def open_on(
    disk: CachingDisk,
    config: Config,
    rights: LogonPolicy | None = None,
    *,
    owner: str,
    new_id: bytes,
    salt: Callable[[], int],
    rebuild: frozenset[str] = frozenset(),
    links: LinkRights | None = None,
) -> OpenedInstance:
    """Open an instance as `open_instance`, on a given disk.

    `owner`: name of the process in the lock file. `new_id`: identity of a new journal. `salt`: callback that
    returns the 64 random bits of each new segment, and of this run if it replicates."""
    settings, archive = config.journal, config.archive
    tier = None if archive is None else ArchiveTier(archive.location)
    fresh = IDENTITY_FILE not in disk.names(".")
    name = config.instance.name
    identity = open_identity(disk, owner=owner, create=settings.create, new_id=new_id, instance=name)
    spill = _spill_files(config, owner, disk)
    recovered = recover_journal(disk, identity.journal_id)
    journal = _journal(settings, recovered, tier)
    executor = DiskJobExecutor(disk, salt, may_wait=settings.write_on_loop)
    plan = plan_records(disk, journal, config.sow, rebuild)
    begin_run(journal, executor)
    registry = read_all(disk, load_publishers(journal))
    try:
        journal.view.set_first(read_all(disk, first_message(journal.view, journal.view.first_position)))
    except JournalCorrupt:  # readers of that message get this error
        journal.view.set_first(None, unknown=True)
    catalog = config.catalog()
    replication = _replication(config, disk, journal, registry, catalog, salt, links)
    broker = Broker(
        journal,
        registry,
        instance=name,
        software=f"tickertape {__version__}",
        catalog=catalog,
        retention=RetentionPolicy(
            settings.retain, settings.retain_size, archive is not None and archive.require
        ),
        slow_clients=config.slow_clients.limits,
        staging=config.transactions.limits,
        limits=config.limits,
        rights=rights,
        hash_secret=os.urandom(16),
        sow_bytes_max=config.sow_bytes,
        replication=replication,
    )
    if replication is not None:
        broker.begin_replication(clock())
    reads = None if archive is None or tier is None else ArchiveReads(archive, journal.identity, tier)
    report = list(recovered.report)
    if not fresh and not recovered.segments:
        report.append(_NO_SEGMENT)
    report.extend(f"{error}. All other messages are available." for error in registry.damage)
    if replication is not None:
        report.extend(f"{error}." for error in replication.facts.damage)
    report.extend(open_states(broker, disk, plan))
    report.extend(open_queues(broker, disk, registry.others))
    report.extend(open_staged(broker, disk))
    report.extend(f"Ignored journal/{name}: not a segment of Tickertape." for name in recovered.unknown)
    return OpenedInstance(broker, disk, executor, report, spill, reads, links=_outgoing_links(config, links))


def _journal(settings: JournalConfig, recovered: RecoveredJournal, tier: ArchiveTier | None) -> Journal:
    return Journal(
        recovered,
        clock(),
        policy=SyncPolicy(settings.sync),
        interval_seconds=settings.sync_interval,
        segment_bytes=settings.segment_size,
        archive=tier,
    )


def _replication(
    config: Config,
    disk: Disk,
    journal: Journal,
    registry: PublisherDirectory,
    catalog: TopicCatalog,
    salt: Callable[[], int],
    policy: LinkPolicy | None,
) -> Replication | None:
    """Return the argument of a broker that replicates. None: it does not."""
    if config.replication is None:
        return None
    from tickertape.engine.replication.link_facts import TopicFacts
    from tickertape.engine.replication.links.replication import Replication
    from tickertape.engine.replication.log_facts import LogFacts

    assert policy is not None, "a server that replicates has a policy for links"
    return Replication(
        facts=read_all(disk, LogFacts.recover(journal, registry)),
        start=salt() or 1,
        group=config.instance.group or config.instance.name,
        destinations=tuple(one.link() for one in config.replication.destinations),
        topics=TopicFacts.of(catalog),
        policy=policy,
        acknowledge=config.replication.acknowledge,
        downgrades={
            one.name: one.policy for one in config.replication.destinations if one.policy is not None
        },
    )


def _outgoing_links(config: Config, credentials: LinkCredentials | None) -> OutgoingLinks | None:
    if config.replication is None:
        return None
    from tickertape.server.network.links import OutgoingLinks

    assert credentials is not None, "a server that replicates has credentials of links"
    return OutgoingLinks(config.instance.name, config.replication.destinations, credentials)


def _data_directory(config: Config) -> SystemDisk:
    """Return the data directory. Create it if it is missing and `create` is true."""
    disk = SystemDisk(config.instance.data)
    if disk.root.is_dir():
        return disk
    if os.path.lexists(disk.root):
        raise NotAJournal(
            f"Cannot open data directory {disk.where!r}: it is not a directory. "
            "Use the directory of a journal, or a new one."
        )
    if not config.journal.create:
        raise NotAJournal(
            f"Cannot open data directory {disk.where!r}: it does not exist and `create` is false. Check that "
            "the disk is mounted, or set `create` to true."
        )
    disk.make_directory("")
    return disk


def plan_records(
    disk: Disk, journal: Journal, definitions: Sequence[SowDefinition], rebuild: frozenset[str]
) -> StatePlan:
    """Decide about the checkpoints of all SOW topics, before the first segment of this run.

    `rebuild`: SOW topics whose checkpoints are not used. Moves unusable checkpoints to quarantine, and makes
    the others durable. Raises `SowIncomplete`, `JournalVersion` or `OSError`."""
    found = find_states(disk, journal.journal_id)
    configured = {definition.name for definition in definitions}
    files = {
        directory: read_states(disk, state.manifest)
        for directory, state in found.items()
        if state.manifest is not None and state.manifest.topic in configured
    }
    plan = read_all(disk, plan_states(journal.view, definitions, StateFiles(found, files), rebuild))
    for directory in plan.quarantine:
        set_aside_state(disk, directory)
    forget_named(disk, journal.view, plan.forgotten)
    kept = [state for name, state in found.items() if name not in plan.quarantine]
    make_durable(disk, kept)
    prepare_directories(disk, kept, plan.topics)
    return plan


def open_states(broker: Broker, disk: Disk, plan: StatePlan) -> list[str]:
    """Recover the SOW topics as planned. Return one line for each finding. Raises `OSError`."""
    if not broker.states:
        return list(plan.report)
    recovered = read_all(disk, broker.states.recover(plan))
    broker.begin_states(plan, recovered, clock())
    return recovered.report


def open_queues(broker: Broker, disk: Disk, control: list[bytes]) -> list[str]:
    """Recover the queues from their checkpoint and the log. Return one line for each finding.

    Raises the errors of `recover_queues`, or `OSError`."""
    if not broker.queues:
        # It may cover messages that a power failure removed. This run would assign their positions again.
        remove_queues(disk)
        return []
    report: list[str] = []
    covered: list[QueueCheckpoint] = []
    try:
        body = read_queues(disk, broker.journal.journal_id)
        covered = [] if body is None else decode_covered(body)
    except (ValueError, OSError) as error:
        report.append(f"{error}. The queues are recovered from the log instead.")
    by_name = {one.queue: one for one in covered}
    now = clock()
    recovered = read_all(disk, recover_queues(broker.queues, broker.journal, control, by_name, now))
    # Replace the checkpoint now: one that was rejected now may wrongly look valid later.
    try:
        write_queues(disk, broker.journal.journal_id, broker.queues.checkpoint_body())
    except OSError as error:
        report.append(f"Cannot write the queue checkpoint: {error}.")
        remove_queues(disk)
    broker.begin_queues(recovered, now)
    return report + recovered.report


def open_staged(broker: Broker, disk: Disk) -> list[str]:
    """Restore prepared parts of transactions. Return one line for each finding. Raises `OSError`."""
    staged, report = find_staged(disk, broker.journal.journal_id)
    broker.begin_staged(staged, clock())
    staging = broker.transactions.staging
    if staging.count:
        report.append(
            f"Kept {staging.bytes} bytes of staged, uncommitted transaction parts, in {staging.count} files."
        )
    return report


def _spill_files(config: Config, owner: str, disk: Disk) -> SpillFiles | None:
    settings = config.slow_clients
    if not settings.disk_limit:
        return None
    path = settings.path(config.instance.data)
    if settings.directory is not None:
        # The data directory is locked already. Another directory needs a lock of its own before it is
        # cleared.
        return SpillFiles(path, owner)
    return SpillFiles(path, within=disk.descriptor() if isinstance(disk, SystemDisk) else None)


def record_end(opened: OpenedInstance) -> None:
    """Record the end of the log after a clean stop (`log_end.py`). Raises `OSError`."""
    journal, queues = opened.broker.journal, opened.broker.queues
    shutdown = journal.commits.clean_shutdown
    if shutdown is not None:
        write_clean_shutdown(opened.disk, shutdown)
        # If a full disk blocked accepted messages, the log lacks records that the queue state includes.
        if queues and journal.commits.accepted_end == journal.commits.persisted_end:
            write_queues(opened.disk, journal.journal_id, queues.checkpoint_body())


def begin_run(journal: Journal, executor: DiskJobExecutor) -> None:
    """Prepare and start the first segment of this run. A full disk does not prevent the start."""
    while jobs := journal.commits.jobs():
        for job in jobs:
            error: OSError | None = None
            made = 0
            try:
                made = executor.run(job)
            except OSError as failed:
                error = failed
            journal.commits.done(job, error, made, clock())
    if journal.commits.failure is not None:
        raise journal.commits.failure
    journal.take_persisted()


def read_all(disk: Disk, steps: Generator[ReadRequest | None, Buffer, T]) -> T:
    """Run the generator of a log search with blocking reads, and return its result.

    A request of None needs no read. Raises the errors of the search, and `OSError`."""
    handles: dict[int, int] = {}
    try:
        request = next(steps)
        while True:
            if request is None:
                request = steps.send(b"")
                continue
            handle = handles.get(request.segment)
            if handle is None:
                handle = handles[request.segment] = disk.open(segment_path(request.segment), write=False)
            request = steps.send(request.read(partial(disk.read, handle)))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        for handle in handles.values():
            disk.close(handle)
