"""`replication compare`: compare the messages of two data directories of replicating servers.

The directories are not locked or changed, because servers may run on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tickertape.base.names import check_topic, is_pattern
from tickertape.cli.support.command_group import EXIT_ERROR
from tickertape.cli.support.option_types import parsed
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.engine.replication.routes import RuleSet
    from tickertape.journal.offline.comparison import ComparedLog, LogComparison, MessageDifference

EXIT_ON_THE_WAY: Final = 3
"""Exit code without a difference, while messages are on the way."""
_LISTED_DEFAULT: Final = 20


def _rules(topics: Sequence[str]) -> RuleSet:
    """Return the rules that select topics and patterns, without any the topics of all messages of clients."""
    from tickertape.engine.replication.routes import ReplicationRule, RuleSet
    from tickertape.filter.pattern_overlap import EVERY_TOPIC

    for topic in topics:
        if not is_pattern(topic):
            check_topic(topic)
    return RuleSet(ReplicationRule(topic=topic, sync=False) for topic in topics or (EVERY_TOPIC,))


class _RoutedMessages:
    """The messages that links with these rules send, if they do not filter by content."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    def takes_topic(self, topic: str) -> bool:
        """Return whether a rule matches the topic. No rule matches topics of the server itself."""
        return self._rules.rule_of(topic) is not None

    def takes_record(self, topic: str, body: bytes) -> bool:
        """Return whether it is a delete of records of a matching topic."""
        from tickertape.engine.replication.routes import topics_of_delete
        from tickertape.wire.sow_command import SOW_TOPIC

        return topic == SOW_TOPIC and any(map(self.takes_topic, topics_of_delete(body)))


_directory = click.Path(exists=True, file_okay=False)


@click.command(short_help="Compare the messages of two data directories.")
@click.argument("first", type=_directory, metavar="A")
@click.argument("second", type=_directory, metavar="B")
@click.option(
    "--topic",
    "rules",
    multiple=True,
    metavar="TOPIC",
    callback=parsed(_rules),
    help="Only messages of this topic (a name or a pattern). May be repeated.",
)
@click.option("--unsynced", is_flag=True, help="Include data that may not be synced yet.")
@limit_option("Print at most N differences.", _LISTED_DEFAULT)
@output_option
@click.pass_context
def compare(
    ctx: click.Context, first: str, second: str, rules: RuleSet, unsynced: bool, limit: int, as_json: bool
) -> None:
    """Compare the messages in the data directories A and B of two servers that replicate to each other.

    Equal logs have the same messages with the same content, in any order. Select the replicated topics with
    --topic, unless links replicate all topics. Servers may run meanwhile. Messages that one log lacks because
    its link has not reached them are on the way: they are counted, but are not differences. Sequences up to
    the highest one that retention removed from a log are left out.

    Exit code 1 means differences, and 3 none yet, but messages on the way.

    \b
    tickertape replication compare /srv/ny-1 /srv/ny-2
    tickertape replication compare /srv/ny-1 /srv/ny-2 --topic '^orders/' --output json
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.comparison import compare_logs
    from tickertape.journal.offline.verify import segment_bytes

    a, b = SystemDisk(first), SystemDisk(second)
    with progress("compare", segment_bytes(a) + segment_bytes(b)) as advance:
        found = compare_logs(a, b, _RoutedMessages(rules), advance, unsynced=unsynced)
    if as_json:
        shown = {"differences": found.differences[:limit], "equal": found.equal}
        click.echo(msgspec.json.encode(msgspec.to_builtins(found) | shown))
    else:
        _print(found, limit)
    if not found.equal:
        ctx.exit(EXIT_ERROR)
    if found.a.on_the_way or found.b.on_the_way:
        ctx.exit(EXIT_ON_THE_WAY)


def _print(found: LogComparison, limit: int) -> None:
    for name, log in (("A", found.a), ("B", found.b)):
        click.echo(f"{name}: {_summary(log)}")
    for difference in found.differences[:limit]:
        click.echo(_line(difference))
    hidden = len(found.differences) - limit
    if hidden > 0 or found.more:
        more = " or more" if found.more else ""
        click.echo(f"{counted(max(hidden, 0), 'further difference')}{more}")
    on_the_way = found.a.on_the_way or found.b.on_the_way
    click.echo("different" if not found.equal else "no difference yet" if on_the_way else "equal")


def _summary(log: ComparedLog) -> str:
    text = f"{counted(log.messages, 'message')} of {counted(log.publishers, 'publisher')}"
    if log.on_the_way:
        text += f", {log.on_the_way:,} on the way to the other log"
    if log.removed:
        text += f", {log.removed:,} left out because of removed segments"
    return text


def _line(difference: MessageDifference) -> str:
    place = f"publisher {difference.publisher}, sequence {difference.first}"
    if difference.last > difference.first:
        place = f"publisher {difference.publisher}, sequences {difference.first} to {difference.last}"
    if difference.kind == "different":
        return f"different content: {place}"
    return f"{difference.kind} in {difference.log}: {place}"
