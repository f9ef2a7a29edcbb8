"""Bodies and sets of paths that are slow to read, as large as they may be."""

from __future__ import annotations

from tickertape.payload import Path
from tickertape.payload.limits import path_steps_max, paths_per_reader_max

BYTES = 64 * 1024


def repeated(piece: bytes) -> bytes:
    return (piece * (BYTES // len(piece)))[:-1]


BODIES = {
    "many names": b"{" + b",".join(b'"k%d":1' % n for n in range(6000)) + b"}",
    "few names, often": b"{" + repeated(b'"a":1,"b":{},') + b"}",
    "empty objects": b'{"a":[' + repeated(b"{},") + b"]}",
    "objects": b'{"a":[' + repeated(b'{"b":1},') + b"]}",
    "arrays in objects": b'{"a":[' + repeated(b'{"a":[{"a":[{"b":1}]}]},') + b"]}",
    "empty arrays": b'{"a":[' + repeated(b"[],") + b"]}",
    "another shape": b'{"a":[1],' + b",".join(b'"f%d":{"b":1}' % n for n in range(4000)) + b"}",
}
PATHS = {
    "many fields": [Path((f"f{n}",)) for n in range(paths_per_reader_max)],
    "many below one": [Path(("a", f"x{n}")) for n in range(paths_per_reader_max)],
    "many elements": [Path(("a", n)) for n in range(paths_per_reader_max)],
    "elements and all": [Path(("a", n, "b")) for n in range(100)] + [Path(("a", "b"))],
    "every depth": [Path(("a",) * n) for n in range(1, path_steps_max + 1)],
    "two forms": [Path(("a", "a", "a", "b")), Path(("a", 0, "a", "a", "b"))],
}
