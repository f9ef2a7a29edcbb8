"""Identity of a data directory: create it once, read it, and lock it for one process.

Invariants:
- No identity is created in a directory that contains other files.
- An identity that cannot be read completely is an error.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.errors import JournalCorrupt, JournalLocked, JournalVersion, NotAJournal, WrongJournal
from tickertape.base.interfaces import Disk
from tickertape.base.text_format import shown
from tickertape.journal.format.files import open_file
from tickertape.journal.format.segment import FORMAT_VERSION, JOURNAL_DIRECTORY

IDENTITY_FILE: Final = "identity.json"
LOCK_FILE: Final = "lock"
_TEMPORARY: Final = "identity.json.new"
CREATED_NAMES: Final = frozenset({IDENTITY_FILE, LOCK_FILE, _TEMPORARY, JOURNAL_DIRECTORY, "lost+found"})
"""Names allowed in a directory without an identity: an interrupted creation, or a new file system."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of a data directory, written once and never changed."""

    journal: str
    """32 hexadecimal digits, random."""
    format: int
    instance: str | None = None
    """Name of the server whose log it is. Publisher ids are derived from it. None in a directory that is
    older than this field."""

    @property
    def journal_id(self) -> bytes:
        """The 16 bytes in every segment header."""
        return bytes.fromhex(self.journal)


def open_identity(
    disk: Disk, *, owner: str, create: bool, new_id: bytes, instance: str | None = None
) -> Identity:
    """Lock the directory and read its identity, creating it in an empty directory when `create`.

    Args:
        disk: The data directory.
        owner: Name of this process, shown to the next process that tries to lock the directory.
        create: Create an identity in an empty directory.
        new_id: 16 random bytes, the id of a new journal.
        instance: Server name to store in a new journal or to compare with the stored one. None accepts any.

    Raises:
        NotAJournal, JournalLocked, JournalVersion, JournalCorrupt: The directory is unchanged.
        WrongJournal: The journal belongs to another server name. The directory is unchanged."""
    names = set(disk.names("."))
    if IDENTITY_FILE not in names:
        foreign = sorted(names - CREATED_NAMES)
        if foreign:
            raise NotAJournal(
                f"Cannot open data directory {disk.where!r}: it is not empty and has no {IDENTITY_FILE} "
                f"(found {', '.join(foreign[:3])}). Use the directory of a journal, or an empty one."
            )
        if JOURNAL_DIRECTORY in names and disk.names(JOURNAL_DIRECTORY):
            raise NotAJournal(
                f"Cannot open data directory {disk.where!r}: it has segments but no {IDENTITY_FILE}. "
                "Restore that file from a copy."
            )
        if not create:
            raise NotAJournal(
                f"Cannot open data directory {disk.where!r}: it has no journal and `create` is false. "
                "Check that the disk is mounted, or set `create` to true."
            )
    try:
        disk.lock(LOCK_FILE, owner)
    except BlockingIOError as error:
        raise JournalLocked(
            f"Cannot open data directory {disk.where!r}: it is in use by {error}. Stop that process first."
        ) from None
    if IDENTITY_FILE not in set(disk.names(".")):
        _create(disk, Identity(journal=new_id.hex(), format=FORMAT_VERSION, instance=instance))
    identity = read_identity(disk)
    kept = identity.instance
    if instance is not None and kept is not None and kept != instance:
        raise WrongJournal(
            f"Cannot open data directory {disk.where!r}: it belongs to the instance {shown(kept)}, "
            f"not {shown(instance)}. Start the server with the name {shown(kept)}, or use another data "
            "directory."
        )
    return identity


def _create(disk: Disk, identity: Identity) -> None:
    names = disk.names(".")
    handle = disk.open(_TEMPORARY, create=_TEMPORARY not in names)
    data = msgspec.json.encode(identity) + b"\n"
    disk.truncate(handle, 0)
    disk.write(handle, 0, [data])
    disk.sync(handle)
    disk.close(handle)
    disk.make_directory(JOURNAL_DIRECTORY)
    disk.sync_directory(JOURNAL_DIRECTORY)
    disk.sync_directory(".")
    # The identity is last: a directory that has one is complete.
    disk.rename(_TEMPORARY, IDENTITY_FILE)
    disk.sync_directory(".")


def no_journal(disk: Disk, why: str = f"{IDENTITY_FILE} is missing") -> NotAJournal:
    """Return the error of a reader whose directory has no journal."""
    return NotAJournal(f"Cannot read a journal in {disk.where!r}: {why}. Use the data directory of a server.")


def read_identity(disk: Disk) -> Identity:
    """Return the identity of a directory without locking it. Raises `JournalCorrupt`, `JournalVersion`."""
    with open_file(disk, IDENTITY_FILE) as handle:
        data = disk.read(handle, 0, 4096)
    try:
        identity = msgspec.json.decode(data, type=Identity)
        valid = len(identity.journal_id) == 16
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JournalCorrupt(
            f"Cannot read '{IDENTITY_FILE}': {error}. Restore the file from a copy.", file=IDENTITY_FILE
        ) from None
    if not valid:
        raise JournalCorrupt(
            f"Cannot read '{IDENTITY_FILE}': its journal id is invalid. Restore the file from a copy.",
            file=IDENTITY_FILE,
        )
    if identity.format > FORMAT_VERSION:
        raise JournalVersion(
            f"Cannot open data directory {disk.where!r}: it has format {identity.format}, and this version "
            f"supports formats up to {FORMAT_VERSION}. Use a newer version of Tickertape."
        )
    return identity
