"""`query`: run SQL over the records of SOW topics, with DuckDB in this process."""

from __future__ import annotations

import click

from tickertape.base.units import parse_size
from tickertape.cli.support.arrow_output import check_output, print_table
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.option_types import answer_timeout_option, client_name, parsed
from tickertape.cli.support.output_options import limit_option, table_output_option


@click.command(short_help="Run SQL over the records of SOW topics.")
@click.argument("sql")
@server_options
@limit_option("Print at most N rows.")
@click.option(
    "--memory-limit",
    default="1GB",
    show_default=True,
    callback=parsed(parse_size),
    metavar="SIZE",
    help="Memory of DuckDB, without the records.",
)
@table_output_option
@answer_timeout_option
def query(
    sql: str, server: Server, limit: int | None, memory_limit: int, output: str, timeout: float
) -> None:
    """Run the SELECT of SQL over the records of SOW topics, and print the result.

    Each table is a SOW topic. Put quotes around a name that is not a SQL name, such as "positions/eu". The
    columns are the fields of the JSON bodies, and if named _sow_key, _topic, _bookmark, _timestamp and
    _correlation_id. The records of a topic are those at one position of the log. The statement cannot read
    or write files.

    Requirement: pip install 'tickertape[sql]'

    \b
    tickertape query "SELECT desk, sum(qty) FROM positions GROUP BY desk"
    tickertape query "SELECT * FROM positions JOIN desks USING (desk)" --output csv > positions.csv
    tickertape query 'FROM "positions/eu"' --output arrow > positions.arrow
    """
    check_output(output)
    with server.client(client_name("query"), timeout=timeout) as client:
        table = client.query(sql, memory_limit=memory_limit, timeout=timeout)
    print_table(table, output, limit)
