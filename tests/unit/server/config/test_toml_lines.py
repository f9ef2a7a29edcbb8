"""Lines of all keys that `tomllib` accepts."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tickertape.server.config.toml_lines import Path, find_lines

DOCUMENT = r"""# a comment with = and [brackets]
title = "a # in text" # comment
[owner] # table
name = 'its'
"quoted key".inner = 1
escaped."a\u0062" = 2979-05-27 07:32:00

[[product]]
name = <<<first
  = [not.a.table]
  \<<< still text<<<"
sizes = [
  1,
  [ "x]", '}' ], # nested
  { a = 1, b.c = "2" },
]
[product.origin]
country = >>>
[[neither]]
>>>

[[product]]
name = ""
[[product.part]]
n = 1.5e3
[[product.part]]
n = inf
[a.b.c]
d=true
""".replace("<<<", '"' * 3).replace(">>>", "'" * 3)


def every_path(value: Any, path: Path = ()) -> set[Path]:
    found = {path} if path else set()
    if isinstance(value, dict):
        return found.union(*(every_path(v, (*path, k)) for k, v in value.items()))
    if isinstance(value, list):
        return found.union(*(every_path(v, (*path, i)) for i, v in enumerate(value)))
    return found


def test_every_value_has_a_line() -> None:
    assert find_lines(DOCUMENT).keys() == every_path(tomllib.loads(DOCUMENT))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("owner",), 3),
        (("owner", "name"), 4),
        (("owner", "quoted key", "inner"), 5),
        (("owner", "escaped", "ab"), 6),
        (("product", 0), 8),
        (("product", 0, "name"), 9),
        (("product", 0, "sizes", 1), 14),
        (("product", 0, "sizes", 1, 1), 14),
        (("product", 0, "sizes", 2, "b", "c"), 15),
        (("product", 0, "origin", "country"), 18),
        (("product", 1), 22),
        (("product", 1, "name"), 23),
        (("product", 1, "part", 1, "n"), 27),
        (("a",), 28),
        (("a", "b", "c", "d"), 29),
    ],
)
def test_line_of_each_key_is_the_line_of_the_definition(path: Path, line: int) -> None:
    assert find_lines(DOCUMENT)[path] == line


def test_empty_document_has_no_lines() -> None:
    assert find_lines("") == {}
    assert find_lines("# only this") == {}
