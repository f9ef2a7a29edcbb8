"""Filters and bodies built to be slow, at the size limits. Accepted ones must be fast.

Must never exceed the documented limits of a filter (4 KiB) and a message (64 KiB).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.helpers.filter_texts import FilterTexts
from tickertape.base.errors import BadFilter
from tickertape.base.limits import filter_bytes_max
from tickertape.filter import Filter, compile_filter
from tickertape.payload import message_type

BODY_BYTES = 64 * 1024


def _filled(element: Callable[[int], str]) -> bytes:
    parts: list[str] = []
    size = 16
    while True:
        part = element(len(parts))
        size += len(part.encode()) + 1
        if size > BODY_BYTES:
            return f'{{"a":[{",".join(parts)}]}}'.encode()
        parts.append(part)


def _text(characters: str) -> bytes:
    out = characters.encode()[: BODY_BYTES - 16].decode(errors="ignore")
    return f'{{"a":"{out}"}}'.encode()


def costly_bodies(rng: Random) -> dict[str, bytes]:
    """Long arrays of every kind, chosen hashes, long texts, deep and wide documents."""
    prime = 2**61 - 1  # integers that differ by a multiple of it have one hash
    kinds = (
        str,
        '"{}"'.format,
        '"t{}"'.format,
        "{}.25".format,
        lambda _: "null",
        lambda _: "true",
        lambda _: "[]",
    )
    return {
        "ones": _filled(lambda _: "1"),
        "integers": _filled(lambda _: str(rng.randrange(90_000))),
        "floats": _filled("{}.5".format),
        "texts": _filled('"a{:x}"'.format),
        "numeric texts": _filled('"{}"'.format),
        "nearly numeric": _filled('"{0}e{0}e"'.format),
        "mixed": _filled(lambda i: str(kinds[i % 7](i))),
        "nulls": _filled(lambda i: ("1", "null")[i % 2]),
        "empty": _filled(lambda _: '""'),
        "arrays": _filled(lambda _: "[]"),
        "objects": _filled('{{"b":{}}}'.format),
        "line ends": _filled('"\\n{:x}"'.format),
        "one hash": _filled(lambda i: str(prime * (2**20 + i))),
        "one hash among others": _filled(lambda i: str(prime * (2**20 + i)) if i % 2 else '"x"'),
        "powers": _filled(lambda i: repr(float(2 ** (i % 900)))),
        "one letter": _text("a" * BODY_BYTES),
        "two letters": _text("".join(rng.choices("ab", k=BODY_BYTES))),
        "long letters": _text("".join(rng.choices("abé€😀", k=BODY_BYTES))),
        "growing letters": _text("ΐ" * BODY_BYTES),
        "deep": b'{"a":' + b"[" * 400 + b"]" * 400 + b"}",
        "wide": ("{" + ",".join(f'"f{i}":"x{i}"' for i in range(4_000)) + "}").encode(),
    }


def _chain(part: str, join: str, most: int) -> str:
    parts: list[str] = []
    while (
        len(parts) < most and sum(map(len, parts)) + (len(join) + len(part) + 4) * 1 < filter_bytes_max - 600
    ):
        parts.append(part.replace("#", str(len(parts))))
    return join.join(parts)


def costly_filters() -> dict[str, str]:
    """Return filters on `/a` with as many operators as are accepted. Most compare everything without a
    match.
    """
    needle = "a" * 50 + "b" + "a" * 49
    return {
        "less": _chain("/a < -1#", " or ", 145),
        "less as text": _chain("/a < '!#'", " or ", 145),
        "equal": _chain("/a = 'q#'", " or ", 145),
        "not unequal": _chain("not /a != #", " or ", 95),
        "between": _chain("/a between -2# and -1", " or ", 140),
        "between number and text": _chain("/a between '!' and -1#", " or ", 130),
        "between texts": _chain("/a between '!' and '!#'", " or ", 130),
        "in": f"/a in ({_chain(chr(39) + 'q#' + chr(39), ',', 400)})",
        "begins": f"/a begins with ({_chain(chr(39) + 'q#' + chr(39), ',', 400)})",
        "ends": f"/a ends with ({_chain(chr(39) + 'q#' + chr(39), ',', 400)})",
        "all sorts": "/a begins with 'q' or /a ends with 'q' or /a < '!' or /a between -2 and -1 or /a = 'q'",
        "like": _chain("/a like 'q#$' and not /a = 1", " or not /a = 0 and ", 6),
        "like of many states": "/a like '[ab]*a[ab]{8}c'",
        "like of many letters": "/a like 'a.{7}éè'",
        "upper": _chain("upper(/a) = 'q#'", " or ", 6),
        "instr": _chain(f"instr(/a, '{needle}') = 1#", " or ", 6),
        "instr_i": _chain(f"instr_i(/a, '{needle}') = 1#", " or ", 6),
        "replace": _chain("replace(/a, 'a', 'b') = 'q#'", " or ", 6),
        "regexp_replace": _chain("regexp_replace(/a, 'a', 'b') = 'q#'", " or ", 6),
        "regexp_replace of little": _chain("regexp_replace(/a, '(ab){9}#', 'b') = 'q#'", " or ", 6),
        "regexp_replace that reads ahead": _chain("regexp_replace(/a, 'a(.*#)?', 'b') = 'q#'", " or ", 6),
        "regexp_replace of nothing": _chain("regexp_replace(/a, 'b*', '') = 'q#'", " or ", 6),
        "instr_i of a place": _chain("instr_i(/a, 'ab#') + instr_i(/a, '\u03b9') = 0.#", " or ", 3),
        "crc64": _chain("crc64(/a) = #", " or ", 6),
        "concat": _chain("concat(/a, /a) = 'q#'", " or ", 6),
        "with itself": _chain("not (/a <= /a and /a >= /a)", " or ", 36),
        "array functions": _chain("array_sum(/a) = -1# or array_max(/a) = -9", " or ", 40),
        "array to string": _chain("array_to_string(/a, '#') = 'q'", " or ", 6),
        "arithmetic": _chain("(/a + #) * 2 / 3 % 7 = -1", " or ", 40),
        "fields": _chain("/f# = 'q'", " or ", 145),
        "below arrays": _chain("/a/b = -1#", " or ", 145),
        "parts": _chain("left(/a, 60000) < '!#'", " or ", 95),
        "nested": "length(upper(replace(upper(replace(upper(lower(/a)), 'A', 'BB')), 'B', 'AA'))) = 3",
        "null": _chain("/a is null", " or ", 145),
    }


def accepted_filter(rng: Random, texts: FilterTexts) -> Filter:
    """Return a random filter that is accepted."""
    while True:
        joined = rng.choice([" AND ", " OR "]).join(texts.filter() for _ in range(rng.randrange(1, 9)))
        try:
            return compile_filter(joined, message_type("json"))
        except BadFilter:
            continue
