"""`monitoring`: writes the Grafana dashboard and the Prometheus alert rules of Tickertape."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

import click
import msgspec

from tickertape.cli.support.command_group import UserMistake, given_paths
from tickertape.cli.support.output_options import output_option

FILES: Final = ("grafana-dashboard.json", "prometheus-rules.yml")


@click.command(short_help="Write a Grafana dashboard and Prometheus alert rules.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@output_option
def monitoring(directory: Path, force: bool, as_json: bool) -> None:
    """Write a Grafana dashboard and Prometheus alert rules to DIRECTORY (default: the current directory).

    \b
    grafana-dashboard.json    import it in Grafana with a Prometheus data source
    prometheus-rules.yml      add it to rule_files in prometheus.yml

    \b
    tickertape monitoring /etc/tickertape
    """
    existing = [name for name in FILES if (directory / name).exists()]
    if existing and not force:
        raise UserMistake(
            f"Cannot write {str(directory / existing[0])!r}: the file exists. Use --force to overwrite it."
        )
    with given_paths():
        directory.mkdir(parents=True, exist_ok=True)
    source = files("tickertape.cli") / "monitoring"
    for name in FILES:
        (directory / name).write_bytes((source / name).read_bytes())
        written = directory / name
        click.echo(msgspec.json.encode({"file": str(written)}) if as_json else written)
