"""Committed corpora: small inputs, valid and hostile ones of every kind, as the seeds of fuzzing.

`python -m tests.fuzz.corpora` rewrites them as `good-*` and `hostile-*`. Other files are inputs that once
found a defect, and are kept. Must never make a random input: every rewrite gives the same files.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.fuzz.mutations import mended_frames, mended_segment
from tests.fuzz.stores import mended_log, mended_publish_segments, mended_ring
from tickertape.client.bookmark_store import log_format, ring_format
from tickertape.client.publish_store.format import HEADER_BYTES as PUBLISH_HEADER_BYTES
from tickertape.client.publish_store.format import MARK_AT, NEXT_AT, WORD, marked
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.wire.commands import PREFACE

CORPUS: Final = Path(__file__).parent / "corpus"
CORPORA: Final = {
    "frame": ("wire_server", "wire_client", "frame_reader"),
    "command": ("engine", "client"),
    "batch": ("batch",),
    "filter": ("filter_text", "topic_pattern"),
    "segment": ("segment", "recovery", "headers", "index"),
    "store file": ("publish_store", "bookmark_log", "bookmark_ring"),
    "configuration": ("config",),
}
"""Kinds of external input, and their targets."""
INPUT_BYTES_MAX: Final = 4096
CORPORA_BYTES_MAX: Final = 320 << 10
_MOST: Final = b"\xff\xff\xff\xff"
_DEEP: Final = 800

Named = Iterator[tuple[str, bytes]]


def committed(name: str) -> list[bytes]:
    """Return the committed inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]


def made(name: str, good: Sequence[bytes]) -> dict[str, bytes]:
    """Return the file names and inputs of a target. `good` are its valid inputs."""
    found = {f"good-{number:02}": data for number, data in enumerate(good) if len(data) < INPUT_BYTES_MAX}
    found |= {f"hostile-{what}": data for what, data in _HOSTILE[name](good)}
    return {f"{what}.bin": data for what, data in found.items() if len(data) < INPUT_BYTES_MAX}


# -- hostile inputs of every format -------------------------------------------------------------------


def _cut(data: bytes, places: Sequence[int]) -> Named:
    """Cut an input at each structure, and a byte earlier."""
    for at in places:
        yield f"cut-at-{at:04}", data[:at]
        yield f"cut-before-{at:04}", data[: max(at - 1, 0)]


def _most(data: bytes, places: Sequence[int], mend: Callable[[bytes], bytes] = bytes) -> Named:
    """Set each 32-bit word to its maximum, with valid checksums."""
    for at in places:
        yield f"most-at-{at:04}", mend(data[:at] + _MOST + data[at + 4 :])


def _more(data: bytes, places: Sequence[int], mend: Callable[[bytes], bytes] = bytes) -> Named:
    """Increment each 32-bit word, with valid checksums."""
    for at in places:
        value = struct.unpack_from("<I", data, at)[0]
        yield (
            f"more-at-{at:04}",
            mend(data[:at] + struct.pack("<I", (value + 1) & 0xFFFF_FFFF) + data[at + 4 :]),
        )


def _wrong(data: bytes, places: Sequence[int]) -> Named:
    """Flip a bit of a checksum, or of the bytes that it covers."""
    for at in places:
        yield f"bit-at-{at:04}", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _around(data: bytes) -> Named:
    yield "nothing", b""
    yield "zeros", bytes(64)
    yield "twice", data + data
    yield "and-more", data + b"\xff" * 40


# -- frames and commands ------------------------------------------------------------------------------


def _frames(preface: bytes) -> Callable[[Sequence[bytes]], Named]:
    """Return a function of inputs that begin with `preface`, with a damaged frame behind it."""

    def hostile(good: Sequence[bytes]) -> Named:
        data = max((one for one in good if len(one) < 300), key=len)
        at = len(preface)
        header = at + 16
        header_bytes = struct.unpack_from("<I", data, at + 4)[0]
        batch = header + header_bytes + -header_bytes % 8
        yield from _around(data)
        yield from _cut(data, (at, at + 4, header, header + header_bytes, batch, batch + 32))
        yield from (*_most(data, (at, at + 4)), *_more(data, (at, at + 4)))
        yield from _most(data, range(batch, min(batch + 32, len(data) - 4), 4), _mended(preface))
        yield from _wrong(data, [one for one in (0, at + 8, at + 12, header, batch + 40) if one < len(data)])
        for what, command in _COMMANDS.items():
            yield f"command-{what}", preface + _framed(command)

    return hostile


def _framed(header: bytes) -> bytes:
    """Return a frame with only a header and a valid checksum."""
    padded = header + bytes(-len(header) % 8)
    frame = struct.pack("<IIII", 16 + len(padded), len(header), 0, 0) + padded
    return mended_frames(PREFACE + frame)[len(PREFACE) :]


def _mended(preface: bytes) -> Callable[[bytes], bytes]:
    return mended_frames if preface else lambda data: mended_frames(PREFACE + data)[len(PREFACE) :]


_COMMANDS: Final = {
    "none": b"",
    "empty": b"\x80",
    "no-map": b"\xc0",
    "unknown": b"\x81\xa1c\xa1?",
    "twice-the-tag": b"\x82\xa1c\xa1p\xa1c\xa1s",
    "deep": b"\x81\xa1c" + b"\x91" * 1500 + b"\xc0",
    "endless-array": b"\x81\xa1c\xdd" + _MOST,
    "endless-map": b"\xdf" + _MOST,
    "endless-text": b"\x81\xa1c\xdb" + _MOST,
    "not-utf-8": b"\x81\xa1c\xa2\xff\xfe",
    "wide-number": b"\x82\xa1c\xa1p\xa2id\xcf" + b"\xff" * 8,
    "below-zero": b"\x82\xa1c\xa1p\xa2id\xd3\x80" + bytes(7),
    "two-documents": b"\x80\x80",
}
"""Headers of frames in MessagePack."""


def _batches(good: Sequence[bytes]) -> Named:
    data = max(good, key=len)
    yield from _around(data)
    yield from _cut(data, (4, 32, 72, struct.unpack_from("<I", data, 20)[0], len(data)))
    words = (*range(0, 32, 4), 56, 60, 64, *range(72, 120, 4))
    yield from (*_most(data, words), *_more(data, words[::2]))
    yield from _wrong(data, (60, len(data) - 9))
    first = 36 + 40 * struct.unpack_from("<I", data, 12)[0]
    yield "offsets-that-fall", data[:first] + struct.pack("<I", 1 << 16) + data[first + 4 :]


# -- text ---------------------------------------------------------------------------------------------


def _filters(_: Sequence[bytes]) -> Named:
    deep = {
        "brackets": "(" * _DEEP + "/a" + ")" * _DEEP,
        "open-brackets": "(" * 1500,
        "nots": "NOT " * (_DEEP // 2) + "/a = 1",
        "signs": "-" * _DEEP + "1",
        "pluses": "+" * _DEEP + "/a",
        "calls": "UPPER(" * (_DEEP // 3) + "/a" + ")" * (_DEEP // 3),
        "subscripts": "/a" + "[0]" * (_DEEP // 3) + " = 1",
        "steps": "/a" * _DEEP + " = 1",
    }
    wide = {
        "members": "/a IN (" + ",".join("1" * 400) + ")",
        "terms": " OR ".join(["/a=1"] * 120),
        "sums": "+".join("1" * 400) + "=1",
        "arguments": "CONCAT(" + ",".join(["/a"] * 200) + ")='x'",
        "digits": "/a = " + "9" * 500,
        "decimals": "/a = ." + "0" * 1000 + "1",
        "exponent": "/a = 1e999999999",
        "subscript": "/a[99999999999999999999] = 1",
        "pattern": "/a LIKE '" + "(a*)*" * 150 + "'",
        "repeats": "/a LIKE '((a{30}){30}){30}'",
        "text": "'" + "x" * 700 + "' = /a",
    }
    odd = {
        "open-text": "/a = 'x",
        "no-operand": "/a =",
        "only-not": "NOT",
        "empty-list": "/a IN ()",
        "zero": "/a / 0 = 1 AND /a % 0 = 1",
        "nul": "/a = '\0'",
        "blank": " \t\r\n ",
        "quotes": "'" * 999,
    }
    for what, text in (deep | wide | odd).items():
        yield what, text.encode()
    yield "not-utf-8", b"/a = '\xff\xfe\xed\xa0\x80'"


def _patterns(_: Sequence[bytes]) -> Named:
    texts = {
        "deep": "(" * 600 + "a" + ")" * 600,
        "open": "(" * 600,
        "repeats": "((((a{9}){9}){9}){9}){9}",
        "stars": "(a*)*" * 200,
        "many": "a{1000}",
        "alternatives": "|".join("ab" * 400),
        "class": "[" + "a-z" * 400 + "]",
        "open-class": "[a",
        "last-escape": "a\\",
        "look-ahead": "(?=a)",
        "back-reference": "(a)\\1",
        "wide-range": "[\\x{0}-\\x{10FFFF}]{100}",
        "quoted": "\\Q" + "(" * 100,
    }
    for what, text in texts.items():
        yield what, text.encode()
    yield "not-utf-8", b"a\xff"


def _configurations(good: Sequence[bytes]) -> Named:
    whole = max(good, key=len)
    texts = {
        "deep-arrays": "a = " + "[" * _DEEP + "]" * _DEEP,
        "open-arrays": "a = " + "[" * 1500,
        "deep-tables": "a = " + "{b=" * 500 + "1" + "}" * 500,
        "deep-names": "[" + ".".join("a" * 900) + "]",
        "dotted-key": ".".join("a" * 900) + " = 1",
        "many-topics": '[[topic]]\nname = "t"\n' * 150,
        "includes-itself": 'include = ["c.toml"]\n',
        "includes-a-directory": 'include = ["."]\n',
        "includes-much": "include = [" + '"x",' * 300 + "]",
        "include-no-text": "include = [[1]]",
        "variable-missing": '[instance]\nname = "${B}"',
        "variable-open": '[instance]\nname = "${A"',
        "variable-within": '[instance]\nname = "${${A}}"',
        "many-variables": '[instance]\nname = "' + "${A}" * 100 + '"',
        "wide-number": "[instance]\nname = " + "9" * 500,
        "no-number": "[instance]\nname = nan",
        "sow-wrong-kinds": '[[sow]]\nname = 1\nkey = "/a"\nindex = [5, [[]], ["/a"]]\nexpiration = []\n',
        "sow-many-fields": '[[sow]]\nname = "a"\nkey = [' + '"/a",' * 40 + "]",
        "sow-slow-pattern": '[[sow]]\nname = "a"\npattern = "(a?){300}b"\n',
        "wrong-kinds": "instance = 1\ntopic = 2\ntransports = {}\njournal = [[]]",
        "section-twice": "[instance]\n[instance]\n",
        "key-twice": "a = 1\na = 2",
        "date": "[instance]\nname = 9999-12-31T23:59:59.999999+23:59",
        "open-text": '[instance]\nname = """',
        "long-line": "#" * 500,
        "nul": "[instance]\nname = '\0'",
        "carriage-returns": "\r" * 99,
        "escapes": '[instance]\nname = "\\u0000\\uFFFF\\U0010FFFF"',
    }
    yield "nothing", b""
    yield "not-utf-8", b"[instance]\nname = '\xff'"
    yield "byte-order-mark", b"\xef\xbb\xbf" + whole
    for what, text in texts.items():
        yield what, text.encode()
    for number, at in enumerate(at for at in range(len(whole)) if whole[at : at + 1] == b"="):
        if number % 3 == 0:
            yield f"cut-at-{at:04}", whole[: at + 1]


# -- segments -----------------------------------------------------------------------------------------


def _segments(good: Sequence[bytes]) -> Named:
    """Damage a segment reduced to its first two commits."""
    data, second = _two_commits(good)
    yield from _starts(good)
    yield from _most(data, range(8, 96, 16), mended_segment)
    yield from _most(data, range(segment_header_bytes, segment_header_bytes + 64, 8), mended_segment)
    yield from _wrong(data, (segment_header_bytes - 1, second + 95))


def _starts(good: Sequence[bytes]) -> Named:
    """Like `_segments`, for starts, which cost more: only the parts that a start reads."""
    data, second = _two_commits(good)
    commit, body = segment_header_bytes, segment_header_bytes + commit_header_bytes
    yield "nothing", b""
    yield "zeros", bytes(segment_header_bytes + 8)
    yield from _cut(data, (8, commit, body, second))
    yield from _more(data, (8, 12, 16, *range(commit + 4, commit + 64, 16)), mended_segment)
    yield from _wrong(data, (commit + 64, commit + 68, commit + 95, second - 1))
    yield "commit-twice", data[:second] + data[commit:second]
    crc = body + 60  # of the first run, which only readers check
    yield "run-of-another", mended_segment(data[:crc] + bytes([data[crc] ^ 1]) + data[crc + 1 :])


def _two_commits(good: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the beginning of a segment, and the offset of its second commit."""
    data = min(good, key=len)
    second = _end_of_commit(data, segment_header_bytes)
    return data[: _end_of_commit(data, second)], second


def _end_of_commit(data: bytes, at: int) -> int:
    return at + commit_header_bytes + int(struct.unpack_from("<I", data, at + 44)[0])


def _segment_headers(good: Sequence[bytes]) -> Named:
    data = good[0]
    yield from _cut(data, (8, segment_header_bytes, segment_header_bytes + commit_header_bytes))
    yield from _most(data, (*range(8, 80, 16), *range(512, 560, 8)))


def _indexes(good: Sequence[bytes]) -> Named:
    data = good[0]
    yield from _around(data)
    yield from _cut(data, range(8, len(data), 16))
    yield from (*_most(data, range(0, len(data) - 3, 8)), *_more(data, range(4, len(data) - 3, 8)))


# -- store files --------------------------------------------------------------------------------------


def _publish_stores(good: Sequence[bytes]) -> Named:
    first, records_end, size = PUBLISH_HEADER_BYTES, 616, 784
    one, two = _of_size(good[0], 1040), good[1]
    small = bytearray(_of_size(one[:records_end], size))  # messages only
    WORD.pack_into(small, MARK_AT, marked(records_end))
    few = bytes(small)
    yield "nothing", b""
    yield "zeros", bytes(first + 8)
    yield "other-segment-alone", two[768:]
    yield "same-segment-twice", two[:768] * 2
    yield "without-its-last", two[:768]
    yield from _cut(few, (8, 12, first, first + 32, first + 48))
    yield from _most(few, (*range(8, 68, 8), MARK_AT, NEXT_AT), mended_publish_segments)
    yield from _more(few, (24, 48, 60, 64, MARK_AT, NEXT_AT), mended_publish_segments)
    yield from _most(few, (*range(first + 4, first + 32, 4), 588), mended_publish_segments)
    yield from _most(one, (676, 692, 696, 816, 824), mended_publish_segments)
    yield from _more(one, (696, 816, 824, 956, 988), mended_publish_segments)
    yield from _wrong(few, (12, first, first + 40, 580))
    yield "name-not-utf-8", mended_publish_segments(few[:128] + b"\xff" + few[129:])
    yield "text-not-utf-8", mended_publish_segments(few[: first + 32] + b"\xff" + few[first + 33 :])


def _of_size(data: bytes, size: int) -> bytes:
    """Return a segment of a publish store with this size in its header."""
    said = data[:60] + struct.pack("<I", size) + data[64:]
    return mended_publish_segments(said[:size].ljust(size, b"\0"))


def _bookmark_logs(good: Sequence[bytes]) -> Named:
    here = good[1]
    yield "nothing", b""
    yield "and-more", here + b"\xff" * 40
    yield from _cut(here, _records(here)[::2])
    words = [at + word for at in _records(here)[:-1] for word in (4, 8)]
    yield from (*_most(here, (8, *words[:-4]), mended_log), *_more(here, words[::4], mended_log))
    yield from _most(here, range(64 + 48, len(here) - 3, 48), mended_log)
    yield from _wrong(here, _records(here)[:-1:2])
    yield "name-not-utf-8", mended_log(here[:80] + b"\xff" + here[81:])


def _records(data: bytes) -> list[int]:
    """Return the start and the end of the records of a logged bookmark store."""
    places = [log_format.HEADER_BYTES]
    while places[-1] < len(data):
        _, what, value = log_format.RECORD.unpack_from(data, places[-1])
        length = 0 if what & 0xFF == log_format.RecordKind.DISCARD else value + -value % 8
        places.append(places[-1] + log_format.RECORD_BYTES + length)
    return places


def _bookmark_rings(good: Sequence[bytes]) -> Named:
    here = good[1]
    place = ring_format.HEADER_BYTES
    slots = place + ring_format.NAME_BYTES
    yield "nothing", b""
    yield "and-more", here + b"\xff" * 40
    yield from _cut(here, (8, place, slots, slots + ring_format.SLOT_BYTES))
    yield from _most(here, (8, 16, 20, place + 4, place + 12), mended_ring)
    yield from _more(here, (16, 20, place + 4), mended_ring)
    yield from _most(here, range(slots + 12, slots + ring_format.SLOT_BYTES + 16, 8), mended_ring)
    yield from _wrong(here, (40, place, slots, slots + ring_format.SLOT_BYTES))
    both = bytearray(here)
    both[slots] ^= 1
    both[slots + 2 * ring_format.SLOT_BYTES] ^= 1
    yield "bits-in-two-slots", bytes(both)
    yield "name-not-utf-8", mended_ring(here[: place + 16] + b"\xff" + here[place + 17 :])
    yield "no-room", mended_ring(here[:16] + bytes(8) + here[24:64])


_HOSTILE: Final[dict[str, Callable[[Sequence[bytes]], Named]]] = {
    "wire_server": _frames(PREFACE),
    "wire_client": _frames(PREFACE),
    "frame_reader": _frames(b""),
    "engine": _frames(PREFACE),
    "client": _frames(b""),
    "batch": _batches,
    "filter_text": _filters,
    "topic_pattern": _patterns,
    "config": _configurations,
    "segment": _segments,
    "recovery": _starts,
    "headers": _segment_headers,
    "index": _indexes,
    "publish_store": _publish_stores,
    "bookmark_log": _bookmark_logs,
    "bookmark_ring": _bookmark_rings,
}


def main() -> None:
    """Write them."""
    from tests.fuzz.targets import TARGETS

    for name in itertools.chain.from_iterable(CORPORA.values()):
        directory = CORPUS / name
        directory.mkdir(exist_ok=True)
        for path in [*directory.glob("good-*.bin"), *directory.glob("hostile-*.bin")]:
            path.unlink()
        files = made(name, TARGETS[name].seeds())
        for file, data in files.items():
            (directory / file).write_bytes(data)
        print(json.dumps({name: [len(files), sum(map(len, files.values()))]}))


if __name__ == "__main__":
    main()
