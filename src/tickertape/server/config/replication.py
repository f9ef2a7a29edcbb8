"""Replication configuration: the table `[replication]` and its destinations.

Keys of waits are refused where a server does not support them, so that no key is parsed and ignored.

Invariants:
- An option without effect is rejected.
- Credentials cross networks with encryption only, unless the destination is `insecure`.
- Token files are checked for their permissions and not read.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tickertape.base.errors import ConfigurationError
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.routes import (
    EVERY_GROUP,
    PassThrough,
    ReplicationRule,
    RuleSet,
)
from tickertape.engine.replication.validation import EXCLUDABLE, MANDATORY
from tickertape.security.private_files import check_private
from tickertape.server.config.addresses import parse_server
from tickertape.server.config.document import (
    UNUSABLE,
    Section,
    choice_of,
    count_of,
    flag_of,
    instance_name_of,
    kind_of,
    path_of,
    seconds_of,
    text_of,
)
from tickertape.server.config.replicated_topics import ReplicatingServer, read_rules
from tickertape.server.limits import (
    ack_interval_seconds_max,
    behind_wait_seconds_default,
    destination_addresses_max,
    destinations_max,
    downgrade_grace_seconds_default,
    history_wait_seconds_default,
    link_wait_seconds_max,
    peak_rate_max,
)

MergeWhenBehind = Literal["refuse", "accept"]
Ready = Literal["local", "synchronous"]

MERGE_WHEN_BEHIND: Final[tuple[MergeWhenBehind, ...]] = ("refuse", "accept")
READY: Final[tuple[Ready, ...]] = ("local", "synchronous")
REPLICATION_LATER: Final = ("wait_for_peers",)
DESTINATION_LATER: Final = ("hold_max",)
"""Keys of planned features."""
OF_WAITS: Final = ("behind_wait", "history_wait", "merge_when_behind")
"""Keys of waits in `[replication]`."""
OF_ACKNOWLEDGEMENTS: Final = ("ack_interval",)
"""Keys of acknowledgements in a destination."""
NEVER: Final = "never"
"""Value of `downgrade_after` for acknowledgements that always wait."""

_ALL: Final = "all"
_ANY: Final = re.compile(r"any ([1-9]\d?)")
_OF_DOWNGRADE: Final = ("downgrade_grace", "upgrade_below")
_path = partial(path_of, noun="file")


class DestinationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A server to which this server replicates."""

    name: str
    """Instance name that the destination must have."""
    addresses: tuple[str, ...]
    """Addresses that are tried in turn."""
    rules: tuple[ReplicationRule, ...]
    token_file: str | None = None
    """Path of the file with the token for the destination. None: the destination needs no token."""
    ca: str | None = None
    """Path of the CA certificates of `tls://` addresses. None: those of the system."""
    insecure: bool = False
    """Whether an unencrypted address beyond loopback is allowed."""
    pass_through: str = EVERY_GROUP
    """Pattern of the groups whose messages are passed on. Empty: only messages of the own clients."""
    downgrade_after: float | None = None
    """Seconds that the oldest message may wait for a synchronous destination. None: no limit."""
    downgrade_grace: float = downgrade_grace_seconds_default
    """Seconds after a start before the first downgrade."""
    upgrade_below: float | None = None
    """Age in seconds of the oldest message below which a downgrade ends. None without `downgrade_after`."""
    ack_interval: float = 0.0
    """Minimum seconds between two acknowledgements of the destination."""
    exclude_validation: tuple[str, ...] = ()
    """Checks that do not apply to the link."""

    @property
    def policy(self) -> DowngradePolicy | None:
        """Limits of downgrades and upgrades. None: the destination is not downgraded by itself."""
        if self.downgrade_after is None or self.upgrade_below is None:
            return None
        return DowngradePolicy(self.downgrade_after, self.downgrade_grace, self.upgrade_below)

    def link(self) -> OutgoingLink:
        """Return the facts of the link to this destination, for its validation."""
        return OutgoingLink(
            destination=self.name,
            rules=self.rules,
            pass_through=self.pass_through,
            excluded=self.exclude_validation,
        )


class ReplicationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Replication of this server to others."""

    acknowledge: int | None = None
    """Number of synchronous destinations that an acknowledgement waits for. None: all of them."""
    behind_wait: float = behind_wait_seconds_default
    """Seconds that a publisher waits for own messages that are on the way from other servers."""
    history_wait: float = history_wait_seconds_default
    """Seconds that publishers are refused after a loss of history, until each two-way peer was connected."""
    merge_when_behind: MergeWhenBehind = "refuse"
    """Treatment of merges and deletes by filter of a publisher whose messages are missing here."""
    ready: Ready = "local"
    """Whether a server is ready while a synchronous destination is down: `local` yes, `synchronous` no."""
    peak_rate: int | None = None
    """Published messages a second, for the check of the size of publish stores."""
    destinations: tuple[DestinationConfig, ...] = ()

    @property
    def stored_messages_max(self) -> int | None:
        """Messages that publish stores must hold until the last downgrade. None: unknown, or no downgrade."""
        waits = [one.downgrade_after for one in self.destinations if one.downgrade_after is not None]
        return math.ceil(self.peak_rate * max(waits)) if self.peak_rate is not None and waits else None


def read_replication(section: Section, server: ReplicatingServer) -> ReplicationConfig:
    """Read the table `[replication]`."""
    section.not_built(*REPLICATION_LATER, *(() if server.waits else OF_WAITS))
    if not server.is_named:
        section.problem(
            "",
            "requires a name of this server: two servers with the default name would number messages of a "
            "client alike. Set name in [instance].",
        )
    found = section.values(
        acknowledge=_acknowledge,
        behind_wait=_wait,
        history_wait=_wait,
        merge_when_behind=choice_of(MERGE_WHEN_BEHIND),
        ready=choice_of(READY),
        peak_rate=lambda value: count_of(value, 1, peak_rate_max),
    )
    destinations: dict[str, DestinationConfig] = {}
    for number, table in enumerate(section.tables("destination") or []):
        if number == destinations_max:
            table.problem("", f"too many destinations (limit {destinations_max}). Remove some.")
            break
        destination = _destination(table, server)
        name = destination.name
        if name in destinations:
            table.problem("name", f"duplicate destination {shown(name)}. Use one table with all topics.")
        elif name:
            destinations[name] = destination
    section.finish()
    replication = ReplicationConfig(**found, destinations=tuple(destinations.values()))
    _check_acknowledge(section, replication)
    has_sync = any(RuleSet(one.rules).has_sync for one in replication.destinations)
    if "ready" in found and not has_sync:
        section.problem("ready", "has no effect without a synchronous topic. Remove it.")
    if replication.peak_rate is not None and replication.stored_messages_max is None:
        section.problem("peak_rate", "has no effect without downgrade_after. Remove it.")
    return replication


# -- destinations -------------------------------------------------------------------------------------


def _destination(section: Section, server: ReplicatingServer) -> DestinationConfig:
    section.not_built(*DESTINATION_LATER, *(() if server.waits else OF_ACKNOWLEDGEMENTS))
    name = section.required("name", instance_name_of, "")
    none: tuple[str, ...] = ()
    addresses = section.required("addresses", _addresses, none)
    found = section.values(
        insecure=flag_of,
        pass_through=_pass_through,
        downgrade_after=_downgrade_after,
        downgrade_grace=_wait,
        upgrade_below=seconds_of,
        ack_interval=_ack_interval,
        exclude_validation=_exclude_validation,
    )
    for key in ("token_file", "ca"):
        path = section.value(key, _path, None)
        if path is not None:
            found[key] = str(Path(section.location(key).file).parent / path)
    tables = section.tables("topic")
    section.finish()
    if name and name == server.name:
        section.problem("name", f"{shown(name)} is this server. Use the name of another server.")
    if tables is None or not tables:
        section.problem("topic", "is missing: write [[replication.destination.topic]] for each topic")
    rules = read_rules(tables or [], server)
    destination = DestinationConfig(name=name, addresses=addresses, rules=rules, **found)
    _check_connection(section, destination)
    return _with_downgrade(section, destination)


def _check_connection(section: Section, destination: DestinationConfig) -> None:
    """Report addresses without encryption, keys without effect, and a token that others can read."""
    parsed = [(text, parse_server(text)) for text in destination.addresses]
    plain = [text for text, address in parsed if not (address.tls or address.loopback)]
    if plain and not destination.insecure:
        section.problem(
            "addresses",
            f"{plain[0]} leads to another machine without encryption. Use tls://, or set insecure = true.",
        )
    if destination.insecure and parsed and not plain:
        section.problem("insecure", "has no effect on tls:// and loopback addresses. Remove it.")
    if destination.ca is not None and parsed and not any(address.tls for _, address in parsed):
        section.problem("ca", "has an effect on tls:// addresses only. Remove it.")
    if destination.token_file is not None:
        try:
            check_private(destination.token_file, "token file", ConfigurationError)
        except ConfigurationError as error:
            section.problem("token_file", str(error))


def _with_downgrade(section: Section, destination: DestinationConfig) -> DestinationConfig:
    """Return the destination with the default of `upgrade_below`. Report contradictions."""
    after, below = destination.downgrade_after, destination.upgrade_below
    if after is None:
        for key in _OF_DOWNGRADE:
            if section.has(key):
                section.problem(key, "has no effect without downgrade_after. Remove it.")
        return msgspec.structs.replace(destination, upgrade_below=None)
    if destination.rules and not RuleSet(destination.rules).has_sync:
        section.problem("downgrade_after", "has no effect without a topic with sync = true. Remove it.")
    if below is not None and below >= after:
        section.problem("upgrade_below", f"must be below downgrade_after ({after:g} s), not {below:g} s")
    return msgspec.structs.replace(destination, upgrade_below=after / 2 if below is None else below)


def _check_acknowledge(section: Section, replication: ReplicationConfig) -> None:
    """Report `any N` if a topic has fewer synchronous destinations."""
    needed = replication.acknowledge
    if needed is None:
        return
    rule_sets = [RuleSet(one.rules) for one in replication.destinations]
    counts = {
        rule.topic: sum(_is_surely_sync(other, rule, rules) for other in rule_sets)
        for rules in rule_sets
        for rule in (*rules.names, *rules.patterns)
        if rule.sync or not rule.has_pattern
    }
    # A topic without a synchronous rule is acknowledged when it is persisted here.
    topics = {topic: count for topic, count in counts.items() if count}
    if not topics:
        section.problem("acknowledge", "has no effect without a topic with sync = true. Remove it.")
    for topic, count in topics.items():
        if count < needed:
            section.problem(
                "acknowledge",
                f'must be at most "any {count}", because {shown(topic)} has synchronous rules for only '
                f'{count} of the destinations, not "any {needed}"',
            )
            return


def _is_surely_sync(other: RuleSet, rule: ReplicationRule, rules: RuleSet) -> bool:
    """Return whether all topics of a rule of one destination are synchronous by the rules of another."""
    if not rule.has_pattern:
        return other.is_sync(rule.topic)
    # An earlier rule of the one destination may have the topics of an asynchronous rule.
    differ = (rule in rules.overlapping(one.topic) for one in other.overlapping(rule.topic) if not one.sync)
    return other.covers(rule.topic) and not any(differ)


# -- values -------------------------------------------------------------------------------------------


def _acknowledge(value: Any) -> int | None:
    text = text_of(value)
    if text == _ALL:
        return None
    number = _ANY.fullmatch(text)
    if number is None or int(number[1]) > destinations_max:
        raise ConfigurationError(
            f'must be "{_ALL}" or "any N" with N from 1 to {destinations_max}, not {kind_of(value)}'
        )
    return int(number[1])


def _wait(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds > link_wait_seconds_max:
        raise ConfigurationError(f"must be at most {link_wait_seconds_max / 3600:g} h, not {kind_of(value)}")
    return seconds


def _ack_interval(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds > ack_interval_seconds_max:
        raise ConfigurationError(f"must be at most {ack_interval_seconds_max:g} s, not {kind_of(value)}")
    return seconds


def _downgrade_after(value: Any) -> float | None:
    if value == NEVER:
        return None
    seconds = seconds_of(value)
    if seconds <= 0:
        raise ConfigurationError(f'must be above 0, or "{NEVER}", not {kind_of(value)}')
    return seconds


def _addresses(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigurationError(
            f'must be a list of addresses such as ["tls://host:9107"], not {kind_of(value)}'
        )
    if not 0 < len(value) <= destination_addresses_max:
        raise ConfigurationError(f"must have 1 to {destination_addresses_max} addresses, not {len(value)}")
    addresses = [text_of(member.value) for member in value if member.value is not UNUSABLE]
    for at, text in enumerate(addresses):
        parse_server(text)
        if text in addresses[:at]:
            raise ConfigurationError(f"has the address {shown(text)} twice. Remove one of them.")
    return tuple(addresses)


def _pass_through(value: Any) -> str:
    pattern = text_of(value)
    PassThrough(pattern)
    return pattern


def _exclude_validation(value: Any) -> tuple[str, ...]:
    names = ", ".join(f'"{name}"' for name in EXCLUDABLE)
    if not isinstance(value, list):
        raise ConfigurationError(f"must be a list of {names}, not {kind_of(value)}")
    found: list[str] = []
    for member in value:
        if member.value is UNUSABLE:
            continue
        name = text_of(member.value)
        if name in MANDATORY:
            raise ConfigurationError(f"cannot have {shown(name)}: without this check a link loses messages")
        if name not in EXCLUDABLE:
            raise ConfigurationError(
                f"must have only {names}, not {shown(name)}.{did_you_mean(name, EXCLUDABLE)}"
            )
        if name in found:
            raise ConfigurationError(f"has {shown(name)} twice. Remove one of them.")
        found.append(name)
    return tuple(found)
