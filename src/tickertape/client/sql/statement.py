"""Tables that a SQL statement reads, found in the syntax tree of DuckDB.

Only a single SELECT has a syntax tree, so everything else is refused before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tickertape.base.errors import BadQuery
from tickertape.base.text_format import shown
from tickertape.client.sql.database import Database, marked

_TREE: Final = "select json_serialize_sql(?::varchar, skip_null := true, skip_empty := true)"
_CURE: Final = "Use one SELECT, and name the values of a PIVOT with IN"


def tables_of(sql: str, database: Database) -> list[str]:
    """Return the names of the tables in the statement `sql`, without those that it defines itself (`WITH`).

    Raises `BadQuery` for a statement that is not a single SELECT, and for names with a schema.
    """
    tree = msgspec.json.decode(database.value(_TREE, sql))
    if tree.get("error"):
        raise BadQuery(_refusal(sql, tree))
    if len(tree["statements"]) != 1:
        raise BadQuery(f"Cannot run SQL: the text has {len(tree['statements'])} statements. {_CURE}.")
    names = list(dict.fromkeys(_tables(tree["statements"], frozenset())))
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise BadQuery(
                f"Cannot run SQL: {shown(other)} and {shown(name)} are the same table name in SQL, which "
                "ignores case. If they are one topic, use one spelling. Otherwise give one of the topics "
                "another name with the parameter `tables`."
            )
    return names


def _refusal(sql: str, tree: dict[str, Any]) -> str:
    text = str(tree.get("error_message", ""))
    if tree.get("error_type") != "parser":
        return f"Cannot run SQL: the statement is not a SELECT. {_CURE}."
    position = str(tree.get("position", ""))
    return marked(f"Cannot run SQL: {text}. Correct the statement.", sql, position)


def _tables(node: Any, defined: frozenset[str]) -> Iterator[str]:
    """Yield the names of tables below `node`, except the names of common table expressions in `defined`.

    A common table expression sees the earlier ones of its `WITH`, and itself only if it is recursive.
    """
    if isinstance(node, list):
        for part in node:
            yield from _tables(part, defined)
    elif isinstance(node, dict):
        for entry in node.get("cte_map", {}).get("map", ()):
            name = entry["key"].lower()
            yield from _tables(entry["value"], defined | {name} if _is_recursive(entry) else defined)
            defined |= {name}
        if node.get("type") == "BASE_TABLE":
            yield from _table(node, defined)
        for key, part in node.items():
            if key != "cte_map":
                yield from _tables(part, defined)


def _is_recursive(entry: dict[str, Any]) -> bool:
    return bool(entry["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE")


def _table(node: dict[str, Any], defined: frozenset[str]) -> Iterator[str]:
    name: str = node["table_name"]
    schema = node.get("catalog_name") or node.get("schema_name")
    if schema:
        raise BadQuery(
            f"Cannot run SQL: the table {shown(f'{schema}.{name}')} has a schema, and topics have none. Use "
            'quotes around the whole name of a topic with dots: "a.b".'
        )
    if name.lower() not in defined:
        yield name
