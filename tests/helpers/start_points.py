"""Table of start points and ranges: a text, and which of ten messages it covers.

The first publisher publishes even messages, the second odd ones, each shortly after the one before. In a text
`b3` is the bookmark of message 3, `t3` the time of its acceptance, `t3+` and `t3-` one microsecond beside it.
Must never ask the product for the expected result.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MESSAGES: Final = 10
ALL: Final = list(range(MESSAGES))
UNKNOWN: Final = "77|7|"


class Row(NamedTuple):
    """One line of the table. `code` is the error of an invalid text. `found`: whether the start was found."""

    name: str
    text: str
    covers: list[int]
    code: str = ""
    options: str = ""
    found: bool = True


def after(n: int) -> list[int]:
    return ALL[n + 1 :]


POINTS: Final = [
    Row("0 is EPOCH, the first message", "0", ALL),
    Row("0|1| is NOW, no replay", "0|1|", []),
    Row("a bookmark: the first message after it", "b3", after(3)),
    Row("the first one's bookmark", "b0", after(0)),
    Row("the last one's bookmark", "b9", []),
    Row("a timestamp: strictly after it", "t4", after(4)),
    Row("a timestamp just before a message", "t4-", after(3)),
    Row("a timestamp between messages: the closest point", "t4+", after(4)),
    Row("a timestamp without Z is UTC too", "u4", after(4)),
    Row("a timestamp before the log is EPOCH", "19700101T000000", ALL),
    Row("a timestamp at the end is NOW", "t9", []),
    Row("a timestamp past the end is NOW", "99991231T235959", []),
    Row("a list: the oldest as ordered in the log", "b7,b4,b8", after(4)),
    Row("a list of two publishers: in log order, not by number", "b3,b2", after(2)),
    Row("the same list reversed", "b2,b3", after(2)),
    Row("a list with one member twice", "b5,b5", after(5)),
    Row("blanks around the members", " b7 , b4 ", after(4)),
    Row("a mixed list: the oldest known", f"{UNKNOWN},b6,b8", after(6)),
    Row("a mixed list with an invalid bookmark", "abc|1|,b6", after(6)),
    Row("a list with EPOCH", "b6,0", ALL),
    Row("a list with NOW", "b6,0|1|", after(6)),
    Row("an unknown bookmark is NOW", UNKNOWN, [], found=False),
    Row("an unknown sequence of a known publisher is NOW", "p0|999999|", [], found=False),
    Row("an invalid bookmark is NOW", "abc|1|", [], found=False),
    Row("a number above 64 bits is an invalid bookmark: NOW", "18446744073709551616|1|", [], found=False),
    Row("a list without a known bookmark is NOW", f"{UNKNOWN},abc|2|", [], found=False),
    Row("not found: epoch", UNKNOWN, ALL, options="bookmark_not_found=epoch", found=False),
    Row("not found: now", UNKNOWN, [], options="bookmark_not_found=now", found=False),
    Row("not found: fail", UNKNOWN, [], "bookmark_unknown", "bookmark_not_found=fail"),
    Row("none of a list found: fail", f"{UNKNOWN},1|", [], "bookmark_unknown", "bookmark_not_found=fail"),
    Row("one of a list found does not fail", f"{UNKNOWN},b8", after(8), options="bookmark_not_found=fail"),
    Row("the most recent is not a value of the wire", "recent", [], "bad_bookmark"),
    Row("nothing", "", [], "bad_bookmark"),
    Row("a zone", "20260101T000000+01:00", [], "bad_bookmark"),
    Row("a time in a list", "b3,t4", [], "bad_bookmark"),
]
"""Bookmarks of a subscription, apart from ranges."""

RANGES: Final = [
    Row("[ and ]: both named messages", "[b3:b6]", [3, 4, 5, 6]),
    Row("( and ]: right after the first", "(b3:b6]", [4, 5, 6]),
    Row("[ and ): not the last", "[b3:b6)", [3, 4, 5]),
    Row("( and ): the messages between", "(b3:b6)", [4, 5]),
    Row("the same with times: [ and ]", "[t3:t6]", [3, 4, 5, 6]),
    Row("with times: ( and ]", "(t3:t6]", [4, 5, 6]),
    Row("with times: [ and )", "[t3:t6)", [3, 4, 5]),
    Row("with times: ( and )", "(t3:t6)", [4, 5]),
    Row("times between messages", "[t3+:t6+)", [4, 5, 6]),
    Row("times just before messages", "(t3-:t6-]", [3, 4, 5]),
    Row("from a time to a bookmark", "(t2:b5]", [3, 4, 5]),
    Row("from a bookmark to a time", "[b2:t5)", [2, 3, 4]),
    Row("from EPOCH", "[0:b2]", [0, 1, 2]),
    Row("from EPOCH, exclusive: no message is at EPOCH", "(0:b2]", [0, 1, 2]),
    Row("from NOW to a past bookmark", "[0|1|:b2]", []),
    Row("from before the log", "[19700101T000000:t2]", [0, 1, 2]),
    Row("one message", "[b5:b5]", [5]),
    Row("one time", "[t5:t5]", [5]),
    Row("an empty range, start excluded", "(b5:b5]", []),
    Row("an empty range, end excluded", "[b5:b5)", []),
    Row("an empty range of times", "(t5:t5)", []),
    Row("the end precedes the start", "[b6:b3]", []),
    Row("the end precedes the start, in time", "[t6:t3]", []),
    Row("the end precedes the start, both in the future", "[99990102T000000:99990101T000000]", []),
    Row("the end is past, the start in the future", "[99990102T000000:t3]", []),
    Row("the start is in the future, the end a bookmark", "[99990102T000000:b3]", []),
    Row("a list at the start: its earliest", "[b5,b3,b8:b9]", [3, 4, 5, 6, 7, 8, 9]),
    Row("a list at the start, exclusive: the others are delivered", "(b5,b3:b6]", [4, 5, 6]),
    Row("a list at the end: its latest", "[b3:b4,b6,b5]", [3, 4, 5, 6]),
    Row("a list at the end, exclusive: the others are delivered", "[b3:b4,b6,b5)", [3, 4, 5]),
    Row("lists at both sides", "(b5,b3:b6,b7)", [4, 5, 6]),
    Row("lists of two publishers, as the log orders them", "[b4,b3:b6,b7]", [3, 4, 5, 6, 7]),
    Row("blanks around all parts", "  [  b3 , b5  :  b6 ,b4 ]  ", [3, 4, 5, 6]),
    Row("an unknown member at the start does not count", f"[b3,{UNKNOWN}:b6]", [3, 4, 5, 6]),
    Row("an unknown member at the end does not count", f"[b3:b6,{UNKNOWN}]", [3, 4, 5, 6]),
    Row("an unknown start follows the rule: now", f"[{UNKNOWN}:b6]", [], found=False),
    Row("an unknown start follows the rule: epoch", f"[{UNKNOWN}:b2]", [0, 1, 2],
        options="bookmark_not_found=epoch", found=False),
    Row("an unknown start follows the rule: fail", f"[{UNKNOWN}:b2]", [], "bookmark_unknown",
        "bookmark_not_found=fail"),
    Row("an unknown end: the stop is unknown", f"[b3:{UNKNOWN}]", [], "bookmark_unknown"),
    Row("an unknown end fails under any rule", f"[b3:{UNKNOWN}]", [], "bookmark_unknown",
        "bookmark_not_found=epoch"),
    Row("an end that is an invalid bookmark", "[b3:abc|1|]", [], "bookmark_unknown"),
    Row("no end bracket", "[b3:b6", [], "bad_bookmark"),
    Row("no start bracket", "b3:b6]", [], "bad_bookmark"),
    Row("no end", "[b3:]", [], "bad_bookmark"),
    Row("no start", "[:b3]", [], "bad_bookmark"),
    Row("no colon", "[b3]", [], "bad_bookmark"),
    Row("EPOCH cannot be an end", "[b3:0]", [], "bad_bookmark"),
    Row("NOW cannot be an end", "[b3:0|1|]", [], "bad_bookmark"),
]  # fmt: skip
"""Ranges."""


def written(text: str, bookmarks: list[str], times: list[int], publisher: int) -> str:
    """Return `text` with the bookmarks and times (microseconds) of the messages of this log."""
    from tickertape.base.bookmarks import format_timestamp

    def replace(match: re.Match[str]) -> str:
        kind, number, sign = match[1], int(match[2]), match[3]
        if kind == "b":
            return bookmarks[number] + sign
        stamp = format_timestamp(times[number] + {"+": 1, "-": -1}.get(sign, 0))
        return stamp.removesuffix("Z") if kind == "u" else stamp

    return re.sub(r"\b([btu])(\d)([+-]?)(?!\w)", replace, text).replace("p0|", f"{publisher}|")
