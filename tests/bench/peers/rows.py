"""Rows of the comparison: a class of work, its figures, and the parameters that are equal for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tests.bench.peers.contenders import DISK, MACHINE, PROCESS, Contender, contenders

Work = Literal["publish", "connections", "delivery", "fan_out", "replay", "queue", "native"]

DEPTHS: Final = (1, 4, 16, 64, 256)
SYNC_MILLISECONDS: Final = (1.0, 3.0, 6.0, 15.0)
PROOF_MILLISECONDS: Final = 20.0
"""Longer than anything else in the way of an acknowledgement."""
DELIVERY_RATE: Final = 10_000
SUBSCRIBERS: Final = 10
CONNECTIONS: Final = 16
BACKLOG: Final = 100
REPLAYED: Final = 200_000
"""Messages in the log of the replay."""
QUEUED_MAX: Final = 1_000_000
RATE_REACHED_MIN: Final = 0.95
"""Part of the planned rate without which the latency of a delivery is not comparable."""


@dataclass(frozen=True)
class Figure:
    """One figure of a row."""

    key: str
    title: str
    unit: Literal["msg/s", "us"]

    @property
    def higher_is_better(self) -> bool:
        return self.unit == "msg/s"


RATE: Final = Figure("rate", "rate", "msg/s")
P50: Final = Figure("p50", "p50", "us")
P99: Final = Figure("p99", "p99", "us")


@dataclass(frozen=True)
class Row:
    """One class of work, the same for all contenders."""

    name: str
    title: str
    work: Work
    figures: tuple[Figure, ...]
    survives: str = MACHINE
    depth: int = 1
    call: int = 1
    connections: int = 1
    with_disk: bool = False
    """Whether the disk alone is measured in turn."""
    acknowledged: bool = True
    """Whether the row has acknowledgements of publishes."""
    curve: str = ""
    """Name of the curve that this row is a point of."""
    place: float = 0.0
    """Place of the point on its curve."""
    sync_milliseconds: float = 0.0
    """Additional time of each sync of the disk. 0: the disk as it is."""
    note: str = ""

    @property
    def contenders(self) -> list[Contender]:
        chosen = contenders(self.survives)
        if self.work == "native":
            native = ("tickertape", "valkey", "postgres") if self.depth == 1 else ("tickertape", "valkey")
            chosen = [c for c in chosen if c.peer in native]
        return [*chosen, DISK] if self.with_disk else chosen


ROWS: Final = (
    Row(
        "one-in-flight",
        "one message in flight, synced",
        "publish",
        (P50, P99),
        with_disk=True,
        note="One connection publishes a message and waits for its acknowledgement.",
    ),
    Row(
        "one-in-flight-written",
        "one message in flight, written but not synced",
        "publish",
        (P50, P99),
        survives=PROCESS,
        note="The same, with the setting that acknowledges before the sync.",
    ),
    Row(
        "connections",
        f"{CONNECTIONS} connections with one message in flight each, synced",
        "connections",
        (RATE, P99),
        connections=CONNECTIONS,
        note="Each connection is a process. The rate is the sum, and p99 the median of the connections.",
    ),
    Row(
        "window",
        "single messages, at most 256 without an acknowledgement, synced",
        "publish",
        (RATE, P99),
        depth=256,
        note="One connection, one call for each message, and a window of 256.",
    ),
    Row(
        "batches",
        "calls of 256 messages, at most 1,024 unacknowledged, synced",
        "publish",
        (RATE,),
        depth=1_024,
        call=256,
        note="One connection. Clients without batches make 256 calls.",
    ),
    Row(
        "batches-written",
        "calls of 256 messages, at most 1,024 unacknowledged, written but not synced",
        "publish",
        (RATE,),
        survives=PROCESS,
        depth=1_024,
        call=256,
        note="The same, with the setting that acknowledges before the sync.",
    ),
    Row(
        "delivery",
        f"publish to delivery at another client, {DELIVERY_RATE:,} msg/s, synced",
        "delivery",
        (P50, P99),
        note=(
            "The publisher follows a schedule and does not wait. A contender that does not reach "
            f"{RATE_REACHED_MIN:.0%} of the rate has no figure."
        ),
    ),
    Row(
        "fan-out",
        f"{SUBSCRIBERS} subscribers of one publisher: sum of delivered messages, synced",
        "fan_out",
        (RATE,),
        depth=1_024,
        call=256,
        note="Each subscriber is a process. RabbitMQ stores a copy for each of them.",
    ),
    Row(
        "replay",
        "one consumer reads the log from its start",
        "replay",
        (RATE,),
        survives=PROCESS,
        acknowledged=False,
        note="The log is in memory or in the page cache, and nothing is published.",
    ),
    Row(
        "queue",
        f"one consumer takes and acknowledges messages, at most {BACKLOG} at once, synced",
        "queue",
        (RATE,),
        depth=BACKLOG,
        note="The queue is full at the start. Pull consumers take and acknowledge 100 in a request.",
    ),
    Row(
        "native-one-in-flight",
        "one message in flight, synced",
        "native",
        (P50, P99),
        note="One connection. Ours are encoded frames on a plain socket, without the client.",
    ),
    Row(
        "native-connections",
        f"{CONNECTIONS} connections with one message in flight each, synced",
        "native",
        (RATE,),
        connections=CONNECTIONS,
        note="One load process for all connections.",
    ),
    Row(
        "native-window",
        "256 messages at once, synced",
        "native",
        (RATE,),
        depth=256,
        call=256,
        note="One connection sends 256 messages and waits for all acknowledgements.",
    ),
)

PROOFS: Final = tuple(
    Row(
        f"proof-{name}",
        f"one message in flight on a disk with syncs of {PROOF_MILLISECONDS:g} ms",
        "publish",
        (P50,),
        survives=survives,
        curve="proof",
        place=PROOF_MILLISECONDS,
        sync_milliseconds=PROOF_MILLISECONDS,
    )
    for name, survives in (("synced", MACHINE), ("written", PROCESS))
)
"""Show which acknowledgements wait for a sync."""

CURVES: Final = (
    *(
        Row(
            f"depth-{depth}",
            f"{depth} without an acknowledgement",
            "publish",
            (RATE, P50),
            depth=depth,
            curve="depth",
            place=depth,
        )
        for depth in DEPTHS
    ),
    *(
        Row(
            f"sync-{milliseconds:g}",
            f"syncs of {milliseconds:g} ms",
            "publish",
            (RATE, P50),
            depth=256,
            curve="sync",
            place=milliseconds,
            sync_milliseconds=milliseconds,
        )
        for milliseconds in SYNC_MILLISECONDS
    ),
)


def choose(names: list[str]) -> list[Row]:
    """Return the rows whose name contains one of `names`, or all rows, proofs and curves."""
    return [row for row in (*ROWS, *PROOFS, *CURVES) if not names or any(name in row.name for name in names)]
