"""Location of an archive, a directory or an object store, and durable file creation there.

In a directory a file and its name are synced before the file is used. An object store shows only complete
objects. So no incomplete file looks complete.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from tickertape.base.errors import ArchiveFailed, BadOption
from tickertape.base.text_format import said

if TYPE_CHECKING:
    import pyarrow as pa

_UNSAFE: Final = "aws_s3_allow_unsafe_rename"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class ArchiveLocation(msgspec.Struct, frozen=True):
    """Where an archive lies, in words that mean the same in every process."""

    location: str
    """An absolute path, or the URI of an object store."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of delta-rs for the store, such as `AWS_REGION`; may hold secrets."""

    @property
    def is_directory(self) -> bool:
        """Whether it is a path on this machine."""
        return _SCHEME.match(self.location) is None

    def path(self, name: str) -> str:
        """Return the path of a file below a directory."""
        return os.path.join(self.location, name)

    def file_system(self) -> Any:
        """Return the place as a pyarrow file system; names are relative to it."""
        import pyarrow.fs as fs

        if self.is_directory:
            return fs.SubTreeFileSystem(self.location, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.location, self.options))


def location_of(location: str, options: Mapping[str, str] | None = None) -> ArchiveLocation:
    """Return the place that a user names: a path (relative to the working directory), `file://PATH`, or a URI
    such as `s3://bucket/archive`. Raises `BadOption`."""
    given = dict(options or {})
    if any(
        key.lower() == _UNSAFE and value.lower() not in ("", "0", "false") for key, value in given.items()
    ):
        raise BadOption(
            f"{_UNSAFE.upper()} lets two commits replace each other, and what was archived would be lost: "
            "leave it out; a store of today needs no such thing"
        )
    scheme = _SCHEME.match(location)
    if not location:
        raise BadOption(
            "an archive lies in a directory, or at a URI such as s3://bucket/archive; none is named"
        )
    if scheme is not None and scheme[1].lower() != "file":
        return ArchiveLocation(location.rstrip("/"), given)
    if given:
        raise BadOption(
            f"storage options are for object stores, and {location} is a directory: leave them out"
        )
    path = unquote(location[len(scheme[0]) :]) if scheme else location
    if scheme and not path.startswith("/"):
        raise BadOption(f"{location} names another machine: write file:///PATH")
    return ArchiveLocation(os.path.abspath(path))


@contextlib.contextmanager
def new_file(place: ArchiveLocation, name: str) -> Iterator[pa.NativeFile]:
    """A new file at `place`, open for writing; durable at the end, gone after an exception.

    Raises `OSError`, `FileExistsError` for a directory that has it."""
    if not place.is_directory:
        stream = place.file_system().open_output_stream(name)
        yield stream  # after an exception it is not closed: the object never comes to be
        stream.close()
        return
    import pyarrow as pa

    path = place.path(name)
    make_directory(os.path.dirname(path))
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    try:
        with pa.OSFile(path, "wb") as file:
            yield file
        sync(path)
        sync(os.path.dirname(path))
    except BaseException:
        with contextlib.suppress(OSError):  # vacuum takes what is left
            os.unlink(path)
        raise


def check_files(place: ArchiveLocation, sizes: Mapping[str, int]) -> None:
    """Check that the files named in `sizes`, by their paths below `place`, exist and have these sizes.

    Raises `ArchiveFailed`, naming the first that does not."""
    import pyarrow.fs as fs

    try:
        infos = place.file_system().get_file_info(list(sizes))
    except Exception as error:  # of the system, of Arrow, of delta-rs
        raise ArchiveFailed(f"Cannot check the files of {place.location}: {said(error)}.") from error
    for (path, size), info in zip(sizes.items(), infos, strict=True):
        if info.type != fs.FileType.File:
            raise ArchiveFailed(f"{place.location}: {path} is missing", missing=True)
        if info.size != size:
            raise ArchiveFailed(f"{place.location}: {path} has {info.size} bytes instead of {size}")


def sync(path: str) -> None:
    """Make a file, or the names in a directory, durable. Raises `OSError`."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make_directory(path: str) -> None:
    """Create a directory and those above it, durably; no error when it is there. Raises `OSError`."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    with contextlib.suppress(FileExistsError):  # another task was faster
        os.mkdir(path)
    sync(above)
