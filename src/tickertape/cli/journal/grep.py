"""`journal grep`: find messages whose body or topic matches a regular expression.

RE2 searches in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from tickertape.base.bookmarks import Range, StartPoint
from tickertape.base.text_format import shown
from tickertape.cli.journal.dump import numbered
from tickertape.cli.journal.log_range import LogExtent, directory_argument, extent_options
from tickertape.cli.support.command_group import end_of_search
from tickertape.cli.support.json_lines import json_lines, message_output
from tickertape.cli.support.option_types import NamedChoice
from tickertape.cli.support.output_options import limit_option, output_option

if TYPE_CHECKING:
    from tickertape.journal.offline.snapshot import SelectedMessages

_SEES_EDGES: Final = re.compile(r"[\^$]|\\[AzbBC]|\(\?[^:]")
"""Parts of an expression whose match may depend on the start or end of the body."""


@click.command(short_help="Search bodies or topics for a regular expression.")
@directory_argument
@click.argument("pattern")
@extent_options
@click.option("--count", "-c", "only_count", is_flag=True, help="Print only the number of matches.")
@click.option("--ignore-case", "-i", is_flag=True, help="Ignore the case of letters.")
@click.option(
    "--in",
    "where",
    type=NamedChoice(("body", "topic", "both")),
    default="body",
    show_default=True,
    help="Text to search.",
)
@limit_option("Stop after N matching messages.")
@output_option
def grep(
    directory: str,
    pattern: str,
    first: int | StartPoint | Range | None,
    last: int | StartPoint | None,
    topic: str | None,
    unsynced: bool,
    only_count: bool,
    ignore_case: bool,
    where: str,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print bookmark, topic and body (separated by tabs) of the messages in DIR that match PATTERN.

    PATTERN is an RE2 regular expression. It matches anywhere in the bytes of a body. If no message matches,
    the exit code is 1.

    \b
    tickertape journal grep data 'AAPL|MSFT' --topic orders
    tickertape journal grep data -c '"price":1[0-9]{3}\\b' --from 20261120T090000
    tickertape journal grep data --in topic '^orders/eu/' --limit 1
    """
    search = GrepSearch(_compiled(pattern, ignore_case), pattern, where)
    matched = 0
    out = message_output()
    for selected in LogExtent(directory, first, last, topic, unsynced).selected("grep"):
        hits = search.hits(selected)
        if limit is not None:
            hits = hits[: limit - matched]
        matched += len(hits)
        if hits and not only_count:
            out.write(b"".join(_json(selected, hits) if as_json else _lines(selected, hits)))
        if matched == limit:
            break
    end_of_search(matched, "No message matches.", only_count=only_count, as_json=as_json)


def _compiled(pattern: str, ignore_case: bool) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        cause = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise click.BadParameter(
            f"Invalid RE2 expression {shown(pattern)}: {cause}. Correct it.", param_hint="'PATTERN'"
        ) from None


class GrepSearch:
    """Search for an expression in bodies, topics or both."""

    def __init__(self, expression: Any, pattern: str, where: str) -> None:
        self._search = expression.search
        self._where = where
        self._through = not _SEES_EDGES.search(pattern) and expression.search(b"") is None
        self._topics: dict[str, bool] = {}

    def hits(self, selected: SelectedMessages) -> list[int]:
        """Return the indexes of the matching messages, in order."""
        batch = selected.batch
        if self._where == "body":
            return list(self._bodies(selected))
        good = [self._topic(topic) for topic in batch.topics]
        index = [0] * batch.count if batch.topic_index is None else batch.topic_index.tolist()
        by_topic = [i for i, at in enumerate(index) if good[at]] if any(good) else []
        if self._where == "topic":
            return by_topic
        return sorted({*by_topic, *self._bodies(selected)})

    def _topic(self, topic: str) -> bool:
        known = self._topics.get(topic)
        if known is None:
            if len(self._topics) >= 10_000:
                self._topics.clear()
            known = self._topics[topic] = self._search(topic.encode()) is not None
        return known

    def _bodies(self, selected: SelectedMessages) -> Iterator[int]:
        """Yield the indexes of messages with a matching body.

        For an expression that does not depend on the edges of a body, search the concatenated bodies. A match
        in a body is also a match in the concatenation, at the same offset or earlier (across bodies). So
        bodies before the next match are skipped, and only the body at its start is searched separately."""
        batch, search = selected.batch, self._search
        if not self._through:
            for i, body in enumerate(batch.bodies_list()):
                if search(body) is not None:
                    yield i
            return
        text = bytes(batch.bodies)
        offsets = batch.offsets
        at = 0
        while at < len(text):
            match = search(text, at)
            if match is None:
                return
            i = int(offsets.searchsorted(match.start(), side="right")) - 1
            begin, at = int(offsets[i]), int(offsets[i + 1])
            if match.end() <= at or search(text[begin:at]) is not None:
                yield i


def _json(selected: SelectedMessages, hits: list[int]) -> Iterator[bytes]:
    from tickertape.batch import select

    chosen = selected.positions < 0  # a mask without a message
    chosen[hits] = True
    lines = json_lines(select(selected.batch, chosen))
    return (line + b"\n" for line in numbered(selected.positions[hits].tolist(), lines))


def _lines(selected: SelectedMessages, hits: list[int]) -> Iterator[bytes]:
    batch = selected.batch
    for i in hits:
        yield b"%d|%d|\t%b\t%b\n" % (
            int(batch.publishers[i]),
            int(batch.sequences[i]),
            batch.topic(i).encode(),
            batch.body(i),
        )
