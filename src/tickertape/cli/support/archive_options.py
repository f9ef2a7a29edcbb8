"""Options that name an archive. The libraries that read it are imported when a command runs."""

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
    """Parse the options that delta-rs takes for an object store."""
    found = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"KEY=VALUE, such as AWS_REGION=eu-west-1, not {key!r}")
        found[key] = setting
    return found


storage_option = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parsed(_storage),
    help="What an object store asks for (AWS_REGION, AWS_ENDPOINT_URL, ...), as delta-rs names it; may be "
    "given more than once. What stands in the environment need not be said.",
)
report_json_option = click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")


def archive_location(location: str, storage: dict[str, str]) -> ArchiveLocation:
    """Return the location that the options name."""
    from tickertape.archive.location import location_of

    try:
        return location_of(location, storage)
    except BadOption as error:
        raise click.UsageError(str(error)) from None


def require_deltalake() -> None:
    """Raise `Failure` when this Python cannot read the archive's table."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Failure(f"the archive is a Delta table: {INSTALL} ({error})") from None
