"""Archive options of commands. The archive libraries are imported when a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from tickertape.base.errors import ArchiveFailed, BadOption
from tickertape.cli.support.command_group import UserMistake
from tickertape.cli.support.option_types import parsed

if TYPE_CHECKING:
    from tickertape.archive.location import ArchiveLocation

INSTALL: Final = "pip install 'tickertape[spark]'"


def _storage(values: tuple[str, ...]) -> dict[str, str]:
    """Parse object store options of delta-rs."""
    found = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"Invalid option {key!r}. Use KEY=VALUE, such as AWS_REGION=eu-west-1.")
        found[key] = setting
    return found


storage_option = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parsed(_storage),
    help="Object store option with its delta-rs name, such as AWS_REGION or AWS_ENDPOINT_URL (may be "
    "repeated). Environment variables with these names are also used.",
)


def archive_location(location: str, storage: dict[str, str]) -> ArchiveLocation:
    """Return the archive location of the options."""
    from tickertape.archive.location import location_of

    try:
        return location_of(location, storage)
    except BadOption as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def existing_archive() -> Iterator[None]:
    """Report a location without an archive as a mistake of the user."""
    from deltalake.exceptions import TableNotFoundError

    try:
        yield
    except ArchiveFailed as error:
        if isinstance(error.__cause__, TableNotFoundError):
            raise UserMistake(str(error)) from error
        raise


def require_deltalake() -> None:
    """Raise `UserMistake` if the package `deltalake` is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise UserMistake(f"Cannot open an archive: {error}. Run: {INSTALL}") from None
