"""Archive options of commands. The archive libraries are imported when a command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tickertape.base.errors import BadOption
from tickertape.cli.support.command_group import Failure
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
report_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the report as one JSON object."
)


def archive_location(location: str, storage: dict[str, str]) -> ArchiveLocation:
    """Return the archive location of the options."""
    from tickertape.archive.location import location_of

    try:
        return location_of(location, storage)
    except BadOption as error:
        raise click.UsageError(str(error)) from None


def require_deltalake() -> None:
    """Raise `Failure` if the package `deltalake` is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Failure(f"Cannot open an archive: {error}. Run: {INSTALL}") from None
