"""Order of the frames of a replication link, against a naive model that searches the whole history."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from random import Random
from typing import Any, Final, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.link_frames import (
    DESTINATION,
    LOGS,
    OPEN,
    Sent,
    control_run,
    names,
    plain,
    run_of,
    take,
)
from tests.helpers.wire import joined, seen
from tickertape.base.errors import BadLink
from tickertape.batch import MessageBatch, merge
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkOrigin,
    LinkRequest,
    LinkRuns,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_connection import LinkConnection
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import (
    decode_holes,
    decode_names,
    decode_positions,
    encode_pairs,
    encode_positions,
)

ORIGINS: Final = {
    number: LinkOrigin(number, LOGS[number + 1], "a", "a", (LOGS[number + 1],)) for number in (1, 2, 3)
}
OWN_CONTROL: Final = control_run(None).first_run.publisher


_Kind = TypeVar("_Kind")

# -- the naive model ----------------------------------------------------------------------------------


class History:
    """All accepted commands. Every answer is a search in them."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        return [command for _, command, _ in self.sent if isinstance(command, kind)]

    def stream(self) -> list[LinkNames | LinkRuns]:
        """Commands with an end, answers left out."""
        return [
            one
            for _, one, _ in self.sent
            if isinstance(one, LinkNames) or (isinstance(one, LinkRuns) and not one.answers)
        ]

    def end(self) -> int:
        return max([0, *(one.position for one in self.of(LinkHoles)), *(one.end for one in self.stream())])

    def durable(self) -> int:
        return max([0, *(one.durable for one in self.of(LinkAck))])

    def started(self) -> bool:
        return any(not one.more for one in self.of(LinkHoles))

    def origins(self) -> dict[int, bytes]:
        frames: list[LinkNames | LinkRuns] = [*self.of(LinkNames), *self.of(LinkRuns)]
        return {origin.number: origin.log for one in frames for origin in one.origins}

    def named(self) -> list[tuple[int, int]]:
        """`end` before and of the frame of each named row."""
        before, found = max(one.position for one in self.of(LinkHoles)), []
        for one in self.stream():
            if isinstance(one, LinkNames):
                found += [(before, one.end)] * (len(one.rows) // 36)
            before = one.end
        return found

    def requested(self) -> list[int]:
        return [at for one in self.of(LinkRequest) for at in decode_positions(one.positions).tolist()]

    def unanswered(self) -> list[int]:
        answered = sum(len(one.answers) // 8 for one in self.of(LinkRuns))
        return self.requested()[answered:]

    def window(self) -> int:
        return sum(one.credit for one in self.of(LinkOpened))

    def outstanding(self) -> int:
        spent = sum(cost(command, batch)[0] for _, command, batch in self.sent)
        return spent - sum(one.bytes for one in self.of(LinkCredit))


def cost(command: Any, batch: Any) -> tuple[int, int]:
    """Return the cost of a command, and its messages or rows."""
    if isinstance(command, LinkHoles):
        return len(command.rows), len(command.rows) // 16
    if isinstance(command, LinkNames):
        return len(command.rows), len(command.rows) // 36
    if isinstance(command, LinkRuns) and not command.answers:
        return sum(32 + len(message.data) for message in batch), len(batch)
    return 0, 0


def is_allowed(history: History, sent: Sent) -> bool:
    """Return whether a side may send a command after the history."""
    sender, command, batch = sent
    if isinstance(command, LinkOpen):
        return not history.sent
    if isinstance(command, LinkOpened):
        return len(history.sent) == 1
    if not history.of(LinkOpened):
        return False
    spent, entries = cost(command, batch)
    if (
        history.outstanding() + spent > history.window()
        and spent
        and (entries > 1 or history.outstanding() > 0)
    ):
        return False
    if isinstance(command, LinkHoles):
        return are_first_holes(history, command)
    if isinstance(command, LinkCredit) and history.of(LinkHoles):
        return is_answer_allowed(history, command)
    if not history.started():
        return (
            bool(history.of(LinkHoles))
            and isinstance(command, LinkCredit)
            and is_answer_allowed(history, command)
        )
    if sender == "destination":
        return is_answer_allowed(history, command)
    return is_stream_allowed(history, command, batch)


def are_first_holes(history: History, command: LinkHoles) -> bool:
    before = history.of(LinkHoles)
    publishers = [p for one in [*before, command] for p in decode_holes(one.rows).publishers.tolist()]
    return (
        not history.started()
        and all((one.position, one.behind) == (command.position, command.behind) for one in before)
        and (command.behind or not command.rows)
        and (bool(command.rows) or not command.more)
        and publishers == sorted(set(publishers))
    )


def is_stream_allowed(history: History, command: Any, batch: Any) -> bool:
    announced = [origin.number for origin in command.origins]
    known = history.origins()
    if len(set(announced)) < len(announced) or set(announced) & set(known):
        return False
    known = known | {origin.number: origin.log for origin in command.origins}
    if command.end < history.end():
        return False
    if isinstance(command, LinkNames):
        used = decode_names(command.rows).origins.tolist()
        return all(number in {0, *known} for number in used) and (bool(used) or command.end > history.end())
    runs = [batch.run(number) for number in range(batch.run_count)]
    if any(not (run.publisher and run.first_sequence and run.origin in {0, *known}) for run in runs):
        return False
    publishers = {0: OWN_CONTROL} | {number: control_publisher(log) for number, log in known.items()}
    starts = [0, *accumulate(run.message_count for run in runs)]
    for run, start in zip(runs, starts, strict=False):
        if batch.topic(start) == "$control" and run.publisher != publishers[run.origin]:
            return False
    if not command.answers:
        return True
    positions = decode_positions(command.answers).tolist()
    return (
        command.end == history.end()
        and len(runs) == len(positions)
        and positions == history.unanswered()[: len(positions)]
    )


def is_answer_allowed(history: History, command: Any) -> bool:
    named, unanswered = history.named(), history.unanswered()
    if isinstance(command, LinkCredit):
        return command.bytes <= history.outstanding() - 36 * len(unanswered)
    if isinstance(command, LinkAck):
        behind = (
            unanswered
            and command.durable > named[unanswered[0]][0]
            and command.durable >= named[unanswered[0]][1]
        )
        return history.durable() <= command.durable <= history.end() and not behind
    positions = decode_positions(command.positions).tolist()
    requested = history.requested()
    return (
        positions[-1] < len(named)
        and positions[0] > max(requested, default=-1)
        and all(named[at][1] >= history.durable() for at in positions)
        and 36 * (len(unanswered) + len(positions)) <= history.outstanding()
    )


# -- programs -----------------------------------------------------------------------------------------


def drawn(history: History, rng: Random) -> Sent:
    """Draw a command, mostly one that is allowed after the history."""
    for _ in range(rng.choice((1, 1, 8))):
        sent = any_command(history, rng)
        if is_allowed(history, sent):
            break
    return sent


def any_command(history: History, rng: Random) -> Sent:
    """Draw a command that is often allowed after the history."""
    if not history.sent or rng.random() < 0.01:
        return rng.choice((OPENING, OPENING, ("source", LinkNames(end=1), None)))
    if not history.of(LinkOpened) or rng.random() < 0.01:
        return "destination", LinkOpened(side=DESTINATION, credit=rng.choice((40, 300, 4000))), None
    if (not history.started() and rng.random() < 0.8) or rng.random() < 0.02:
        return first_holes(history, rng)
    if rng.random() < 0.5:
        return from_source(history, rng)
    return "destination", from_destination(history, rng), None


OPENING: Final[Sent] = ("source", OPEN, None)


def near(value: int, rng: Random) -> int:
    return max(value + rng.choice((0, 0, 1, 2, -1)), 0)


def first_holes(history: History, rng: Random) -> Sent:
    before = history.of(LinkHoles)
    last = max([0, *(p for one in before for p in decode_holes(one.rows).publishers.tolist())])
    first, count = max(last + rng.choice((1, 1, 1, 0)), 1), rng.choice((0, 1, 3))
    rows = encode_pairs(range(first, first + count), [9] * count)
    position = before[0].position if before and rng.random() < 0.8 else rng.choice((0, 5))
    behind = before[0].behind if before and rng.random() < 0.8 else bool(count) or rng.random() < 0.5
    return "source", LinkHoles(position=position, behind=behind, rows=rows, more=rng.random() < 0.5), None


def from_source(history: History, rng: Random) -> Sent:
    end, unanswered = history.end(), history.unanswered()
    new = [origin for number, origin in ORIGINS.items() if number not in history.origins()]
    origins = tuple(rng.sample(new, min(len(new), rng.choice((0, 0, 1, 2)))))
    if rng.random() < 0.1:
        origins = tuple(rng.choices(list(ORIGINS.values()), k=rng.choice((1, 2))))
    if unanswered and rng.random() < 0.6:
        count = rng.randint(1, len(unanswered))
        chosen = unanswered[:count] if rng.random() < 0.9 else range(unanswered[-1], unanswered[-1] + count)
        answers = LinkRuns(
            end=end + rng.choice((0,) * 9 + (1,)), origins=origins, answers=encode_positions(chosen)
        )
        return "source", answers, runs(rng, count + rng.choice((0,) * 9 + (1,)))
    if rng.random() < 0.5:
        return "source", LinkRuns(end=near(end, rng), origins=origins), runs(rng, rng.choice((1, 2)))
    count = rng.choice((0, 1, 2, 3))
    rows = names(*[(7, 1, 2)] * count, origin=rng.choice((0, 0, 1, 2))) if count else b""
    return "source", LinkNames(end=near(end, rng), origins=origins, rows=rows), None


def runs(rng: Random, count: int) -> MessageBatch:
    makers = (
        lambda: run_of(
            rng.choice((7, 8)), rng.randint(1, 5), rng.randint(1, 3), origin=rng.choice((0, 0, 1, 2))
        ),
        lambda: control_run(None, origin=rng.choice((0, 0, 1))),
        lambda: control_run(LOGS[rng.choice((2, 3))], origin=rng.choice((0, 1, 2))),
        lambda: run_of(rng.choice((0, 7)), rng.choice((0, 1))),
        plain,
    )
    return merge([rng.choices(makers, (20, 2, 3, 1, 1))[0]() for _ in range(count)])


def from_destination(history: History, rng: Random) -> LinkRequest | LinkAck | LinkCredit:
    choice = rng.random()
    if choice < 0.4:
        named = history.named() if history.started() else []
        start = max([-1, *history.requested()]) + 1
        first = rng.randint(start, max(len(named), start)) if rng.random() < 0.7 else near(start, rng)
        return LinkRequest(positions=encode_positions(range(first, first + rng.choice((1, 1, 2)))))
    if choice < 0.7:
        low, high = sorted((history.durable(), history.end()))
        return LinkAck(durable=near(rng.choice((low, low, rng.randint(low, high), high)), rng))
    left = history.outstanding() - 36 * len(history.unanswered())
    most = near(left, rng) if rng.random() < 0.5 else left // 2
    return LinkCredit(bytes=max(most, 1))


def count_outcomes(seed: int, counts: Counter[str]) -> None:
    """Check one program. Count accepted and refused commands."""
    rng, order, history = Random(seed), LinkOrder(), History()
    for _ in range(60):
        sent = drawn(history, rng)
        allowed = is_allowed(history, sent)
        found = ""
        try:
            take(order, sent)
        except BadLink as error:
            found = str(error)
        assert (not found) == allowed, (sent[1], found)
        counts[f"{'taken' if allowed else 'refused'} {type(sent[1]).__name__}"] += 1
        if allowed:
            history.sent.append(sent)
        if history.started():
            assert (order.end, order.durable) == (history.end(), history.durable())
            assert order.credit == history.window() - history.outstanding()
            assert (order.named, order.unanswered) == (len(history.named()), len(history.unanswered()))
            assert order.origins == history.origins()


@given(st.integers(0, 2**32))
def test_order_accepts_exactly_the_commands_that_the_naive_model_allows(seed: int) -> None:
    count_outcomes(seed, Counter())


def test_programs_have_many_accepted_and_refused_commands_of_each_kind() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        count_outcomes(seed, counts)
    for kind in ("LinkHoles", "LinkRuns", "LinkNames", "LinkRequest", "LinkAck", "LinkCredit"):
        assert counts[f"taken {kind}"] >= 20, counts
        assert counts[f"refused {kind}"] >= 20, counts


# -- both ends ----------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_both_ends_accept_a_valid_link_with_any_delays(seed: int) -> None:
    """Each end sends by the frames that it has. Other frames are on their way."""
    exchange(seed)


def exchange(seed: int) -> int:
    """Return the number of received frames."""
    rng = Random(seed)
    ends = {"source": LinkConnection("source"), "destination": LinkConnection("destination")}
    histories = {"source": History(), "destination": History()}
    ways: dict[str, list[tuple[Sent, bytes]]] = {"source": [], "destination": []}
    assert ends["destination"].feed(ends["source"].preface()) == []
    received = 0
    for _ in range(150):
        here = rng.choice(("source", "destination"))
        if rng.random() < 0.5 and ways[here]:
            sent, frame = ways[here].pop(0)
            (event,) = ends[here].feed(frame)
            found = seen(event)
            assert not found.code, found.text
            assert (found.command, found.batch) == (sent[1], None if sent[2] is None else sent[2].encode())
            histories[here].sent.append(sent)
            received += 1
            continue
        sent = drawn(histories[here], rng)
        if sent[0] == here and is_allowed(histories[here], sent):
            frame = joined(ends[here].send(sent[1], sent[2]))
            histories[here].sent.append(sent)
            ways["destination" if here == "source" else "source"].append((sent, frame))
    return received


def test_exchanges_have_many_frames() -> None:
    assert sum(exchange(seed) for seed in range(20)) > 500
