"""Location of an archive (directory or object store), and durable file creation there.

In a directory, a file and its name are synced before the file is used. An object store shows only complete
objects. Incomplete files therefore never look complete.
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
from tickertape.base.text_format import did_you_mean, said

if TYPE_CHECKING:
    import pyarrow as pa

_UNSAFE: Final = "AWS_S3_ALLOW_UNSAFE_RENAME"
_UNSAFE_EFFECT: Final = "concurrent commits could replace each other and lose archived messages."
_UNSAFE_NEED: Final = "Current object stores do not need it."
_SCHEMES: Final = (
    "file", "s3", "s3a", "gs", "gcs", "az", "azure", "azblob", "azdls", "abfs", "abfss", "adl", "hdfs",
    "viewfs", "webhdfs", "webdav", "oss", "obs", "cos", "tos", "b2", "swift", "hf", "lakefs", "dbfs", "uc",
    "fs", "sftp", "memory",
)  # fmt: skip
"""Schemes that delta-rs knows. It lists them, in any order, for an unknown one."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class ArchiveLocation(msgspec.Struct, frozen=True):
    """Location of an archive, with the same meaning in every process."""

    location: str
    """An absolute path, or the URI of an object store."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of delta-rs for the store, such as `AWS_REGION`. They may contain secrets."""

    @property
    def is_directory(self) -> bool:
        """Whether it is a path on this machine."""
        return _SCHEME.match(self.location) is None

    def path(self, name: str) -> str:
        """Return the path of a file below a directory."""
        return os.path.join(self.location, name)

    def file_system(self) -> Any:
        """Return the place as a pyarrow file system. Names are relative to it."""
        import pyarrow.fs as fs

        if self.is_directory:
            return fs.SubTreeFileSystem(self.location, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.location, self.options))


def location_of(location: str, options: Mapping[str, str] | None = None) -> ArchiveLocation:
    """Return the location for a user's input: a path (relative to the working directory), `file://PATH`, or a
    URI such as `s3://bucket/archive`. Raises `BadOption`."""
    given = dict(options or {})
    scheme = _SCHEME.match(location)
    if any(key.upper() == _UNSAFE and _is_set(value) for key, value in given.items()):
        raise BadOption(f"Invalid storage option {_UNSAFE}: {_UNSAFE_EFFECT} Omit it. {_UNSAFE_NEED}")
    # delta-rs also reads the environment.
    if scheme is not None and scheme[1].lower() in ("s3", "s3a") and _is_set(os.environ.get(_UNSAFE, "")):
        raise BadOption(f"Invalid environment variable {_UNSAFE}: {_UNSAFE_EFFECT} Unset it. {_UNSAFE_NEED}")
    if not location:
        raise BadOption(
            "Invalid archive location '': it is empty. Use a directory or a URI such as s3://bucket/archive."
        )
    if scheme is not None and scheme[1].lower() not in _SCHEMES:
        raise BadOption(
            f"Invalid archive location {location!r}: unknown scheme {scheme[1]!r}."
            f"{did_you_mean(scheme[1], _SCHEMES)} Use a directory or a URI such as s3://bucket/archive."
        )
    if scheme is not None and scheme[1].lower() != "file":
        return ArchiveLocation(location.rstrip("/"), given)
    if given:
        raise BadOption(
            f"Cannot use storage options: {location!r} is a directory, and storage options are for object "
            "stores. Remove them."
        )
    path = unquote(location[len(scheme[0]) :]) if scheme else location
    if scheme and not path.startswith("/"):
        raise BadOption(f"Invalid archive location {location!r}. Use file:///PATH without a host.")
    return ArchiveLocation(os.path.abspath(path))


def _is_set(flag: str) -> bool:
    return flag.lower() not in ("", "0", "false")


def no_table(place: ArchiveLocation) -> ArchiveFailed:
    """Return the error for a location without a table."""
    return ArchiveFailed(
        f"Cannot open an archive at {place.location!r}: it has no Delta table. Create it with "
        "`tickertape pipeline archive`."
    )


@contextlib.contextmanager
def new_file(place: ArchiveLocation, name: str) -> Iterator[pa.NativeFile]:
    """Create a file at `place` for writing. It is durable at the end, and removed after an exception.

    Raises `OSError`, or `FileExistsError` if it exists in a directory."""
    if not place.is_directory:
        stream = place.file_system().open_output_stream(name)
        yield stream  # not closed after an exception, so the object is never created
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
        with contextlib.suppress(OSError):  # vacuum removes leftovers
            os.unlink(path)
        raise


def check_files(place: ArchiveLocation, sizes: Mapping[str, int]) -> None:
    """Check that the files in `sizes`, by path below `place`, exist and have these sizes.

    Raises `ArchiveFailed` that names the first file that does not."""
    import pyarrow.fs as fs

    try:
        infos = place.file_system().get_file_info(list(sizes))
    except Exception as error:  # from the system, Arrow or delta-rs
        raise ArchiveFailed(
            f"Cannot check the files of archive {place.location!r}: {said(error).rstrip('.')}. Check the "
            "location and its access."
        ) from error
    for (path, size), info in zip(sizes.items(), infos, strict=True):
        if info.type != fs.FileType.File:
            raise ArchiveFailed(
                f"Cannot use archive {place.location!r}: {path!r} is missing. Restore the file.", missing=True
            )
        if info.size != size:
            raise ArchiveFailed(
                f"Cannot use archive {place.location!r}: {path!r} has {info.size} bytes instead of {size}. "
                "Restore the file."
            )


def sync(path: str) -> None:
    """Sync a file, or the names in a directory. Raises `OSError`."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make_directory(path: str) -> None:
    """Create a directory and its parents durably, unless it exists. Raises `OSError`."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    with contextlib.suppress(FileExistsError):  # another task created it first
        os.mkdir(path)
    sync(above)
