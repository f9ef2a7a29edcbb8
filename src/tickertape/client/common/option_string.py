"""Owns how what an application asks of a subscription is written as options: keywords, and text of its own.

Must never guess or drop: a value of the wrong kind names its parameter, and what is said twice is refused.
What an option means, and what excludes what, is the server's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tickertape.base.errors import BadOption
from tickertape.base.options import list_value, parse_options
from tickertape.base.text_format import is_finite, shown, shown_number

Rate = float | str
"""Messages a second, or text: `"1000"`, `"500KB"` (payload bytes a second), `"2x"` (the original pace)."""
Interval = float | str
"""Seconds, or text with a unit: `"500ms"`, `"10s"`."""
Fields = str | Sequence[str]
"""Identifiers of fields: a list, or text such as `"[/a,/b]"`."""

NOT_BUILT: Final = (
    "oof", "send_keys", "no_empties", "send_empties", "no_sowkey", "top_n", "skip_n",
    "projection", "grouping",
)  # fmt: skip


def merge_options(text: str, given: Mapping[str, object]) -> dict[str, str | None]:
    """The options that `text`, an option string, and the keywords `given` ask for together.

    A keyword that is None, and a flag that is False, asks for nothing. Raises `BadOption`.
    """
    options = parse_options(text)
    for name, value in options.items():
        if name not in _FORMS:
            raise BadOption(f"option {shown(name)[1:-1]} {_why_not(name)}; there are {', '.join(_FORMS)}")
        if (_FORMS[name] is _flag) != (value is None):
            takes = f"needs a value: {name}=..." if value is None else "takes no value"
            raise BadOption(f"option {name} {takes}")
    for name, asked in given.items():
        if asked is None:
            continue
        form = _FORMS[name]
        written = form(name, asked)
        if form is _flag and not asked:
            continue
        if name in options:
            raise BadOption(
                f"{name} is given twice: as {name}={shown(str(asked))} and in options={shown(text)}"
            )
        options[name] = written
    return options


def _why_not(name: str) -> str:
    if name == "filter":
        return "is no option: a filter is given by itself, as filter="
    return "is not built yet" if name in NOT_BUILT else "does not exist"


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadOption(f"{name} is True or False, not {_kind(value)}")


def _word(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadOption(f"{name} is text, not {_kind(value)}")
    return _alone(name, value)


def _count(name: str, value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return value
    if type(value) is not int or value < 1:
        raise BadOption(f"{name} is a number of messages from 1 on, not {value!r}")
    return str(value)


def _rate(name: str, value: object) -> str:
    kinds = "messages a second, or text such as '1000', '500KB' or '2x'"
    return _number(name, value, kinds) if _is_number(value) else _text(name, value, kinds)


def _interval(name: str, value: object) -> str:
    kinds = "seconds, or text such as '500ms'"
    return _number(name, value, kinds) + "s" if _is_number(value) else _text(name, value, kinds)


def _fields(name: str, value: object) -> str:
    if isinstance(value, str):
        text = value.strip()
        return _alone(name, text if text.startswith("[") or "," not in text else f"[{text}]")
    if not isinstance(value, list | tuple) or not all(isinstance(field, str) for field in value):
        raise BadOption(f"{name} is a list of texts, or text such as '[/a,/b]', not {_kind(value)}")
    fields = tuple([field.strip() for field in value])
    text = "[" + ",".join(fields) + "]"
    try:
        whole = list_value(text) == fields
    except BadOption as error:
        raise BadOption(f"{name}={shown(repr(value))}: {error}") from None
    if not whole:
        raise BadOption(f"{name}={shown(repr(value))}: each member is one identifier, such as '/a'")
    return _alone(name, text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: object, kinds: str) -> str:
    assert isinstance(value, int | float)
    if not (is_finite(value) and value > 0):
        bounds = "below 1e308" if value > 0 else "above 0"
        raise BadOption(f"{name} is {kinds}, and {bounds}; this is {shown_number(value)}")
    text = str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")
    if text == "0":
        raise BadOption(f"{name} is {kinds}, with at most 9 decimals; this is {value}")
    return text


def _text(name: str, value: object, kinds: str) -> str:
    if not isinstance(value, str):
        raise BadOption(f"{name} is {kinds}, not {_kind(value)}")
    return _alone(name, value)


def _alone(name: str, text: str) -> str:
    """`text` as the value of one option, which it must not be more than."""
    text = text.strip()
    try:
        one = parse_options(f"{name}={text}") == {name: text}
    except BadOption as error:
        raise BadOption(f"{name}={shown(text)}: {error}") from None
    if not one:
        raise BadOption(f"{name}={shown(text)} is not the value of one option")
    return text


def _kind(value: object) -> str:
    return type(value).__name__


_FORMS: Final[dict[str, Callable[[str, object], str | None]]] = {
    "bookmark": _flag,
    "timestamp": _flag,
    "bookmark_not_found": _word,
    "rate": _rate,
    "rate_max_gap": _interval,
    "conflation": _interval,
    "conflation_key": _fields,
    "select": _fields,
    "pause": _flag,
    "live": _flag,
    "fully_durable": _flag,
    "replace": _flag,
    "max_backlog": _count,
    "browse": _flag,
}
"""The options there are, and how a keyword's value is written."""
