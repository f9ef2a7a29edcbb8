"""Identity of a data directory: created once, read back, and locked for one process.

Invariants:
- No identity is created in a directory that holds anything else.
- An identity that cannot be read whole is an error.
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
    """Name of the instance whose log it is: derived publisher ids follow from it. None in a directory that is
    older than this field."""

    @property
    def journal_id(self) -> bytes:
        """The 16 bytes that every segment header carries."""
        return bytes.fromhex(self.journal)


def open_identity(
    disk: Disk, *, owner: str, create: bool, new_id: bytes, instance: str | None = None
) -> Identity:
    """Lock the directory and read its identity, creating it in an empty directory when `create`.

    `owner` names this process to the next one that tries; `new_id` is 16 random bytes for a new journal, and
    `instance` the name that is stored in it, or compared with the stored one (None: any). Raises
    `NotAJournal`, `JournalLocked`, `JournalVersion`, `JournalCorrupt`, `WrongJournal` (of another instance);
    the directory is unchanged then."""
    names = set(disk.names("."))
    if IDENTITY_FILE not in names:
        foreign = sorted(names - CREATED_NAMES)
        if foreign:
            raise NotAJournal(
                f"the data directory is not empty and has no {IDENTITY_FILE} "
                f"(found {', '.join(foreign[:3])}): point to the directory of a journal, or to an empty one"
            )
        if JOURNAL_DIRECTORY in names and disk.names(JOURNAL_DIRECTORY):
            raise NotAJournal(f"the data directory has segments but no {IDENTITY_FILE}: restore that file")
        if not create:
            raise NotAJournal("the data directory has no journal and `create` is false: is the disk mounted?")
    try:
        disk.lock(LOCK_FILE, owner)
    except BlockingIOError as error:
        raise JournalLocked(f"the data directory is in use by {error}: stop that process first") from None
    if IDENTITY_FILE not in set(disk.names(".")):
        _create(disk, Identity(journal=new_id.hex(), format=FORMAT_VERSION, instance=instance))
    identity = read_identity(disk)
    kept = identity.instance
    if instance is not None and kept is not None and kept != instance:
        raise WrongJournal(
            f"the data directory belongs to the instance {shown(kept)}, and this one is {shown(instance)}: "
            "start it under that name, or give this instance a directory of its own"
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


def read_identity(disk: Disk) -> Identity:
    """The identity of a directory; nothing is locked. Raises `JournalCorrupt`, `JournalVersion`."""
    with open_file(disk, IDENTITY_FILE) as handle:
        data = disk.read(handle, 0, 4096)
    try:
        identity = msgspec.json.decode(data, type=Identity)
        valid = len(identity.journal_id) == 16
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JournalCorrupt(f"{IDENTITY_FILE} cannot be read: {error}", file=IDENTITY_FILE) from None
    if not valid:
        raise JournalCorrupt(f"{IDENTITY_FILE} holds no journal id", file=IDENTITY_FILE)
    if identity.format > FORMAT_VERSION:
        raise JournalVersion(
            f"the journal has format {identity.format}, this program knows up to {FORMAT_VERSION}: "
            "use a newer one"
        )
    return identity
