"""Clients that commit transactions through losses of connections and power, as a sink does.

Must never look into the engine: outcomes are taken from received frames.
"""

from __future__ import annotations

from random import Random

import msgspec

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import (
    Abort,
    Ack,
    Command,
    Commit,
    Committed,
    Prepare,
    Stage,
    Staged,
    Transaction,
)


class Planned:
    """One transaction: its messages must be in the log once."""

    def __init__(self, key: Transaction, frames: list[list[tuple[str, bytes]]]) -> None:
        self.key = key
        self.frames = frames
        self.committed = False
        """The server has confirmed it."""
        self.abandoned = False
        """It is not asked for any more: it may be there, or not."""

    @property
    def bodies(self) -> list[bytes]:
        return [body for frame in self.frames for _, body in frame]


class Transactor:
    """Commits one transaction after the other, and restarts the current one after a loss."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.planned: list[Planned] = []
        self.attempts = 0
        self.peer: Peer | None = None
        self._prepared: set[str] = set()
        """Parts of the current transaction that the server has reported as durable."""
        self._parts: tuple[str, ...] = ()
        self._waiting: dict[int, tuple[str, str]] = {}
        """By the id of the command: which it is, and its part."""
        self._todo: list[tuple[str, Command, MessageBatch | None]] = []

    @property
    def current(self) -> Planned | None:
        """Return the transaction in progress."""
        last = self.planned[-1] if self.planned else None
        return None if last is None or last.committed or last.abandoned else last

    def connect(self, world: EngineWorld) -> None:
        """Connect under a new name each time, and restart the current transaction."""
        self.attempts += 1
        self.peer = world.connect(f"{self.name}-{self.attempts}")
        self._waiting, self._todo = {}, []
        current = self.current
        if current is None:
            return
        if current.frames and self._prepared == set(self._parts) and self.rng.random() < 0.7:
            # Durable parts need not be staged again.
            world.counts["committed by another connection"] += 1
            commit = Commit(id=self._id(), transaction=current.key, parts=self._parts)
            self._todo.append(("commit", commit, None))
        else:
            self._begin(current)

    def plan(self) -> None:
        """Begin with the next transaction."""
        number = len(self.planned)
        spaced = number % 2 == 0
        key = Transaction(publisher=self.name, space="q" if spaced else "", name=str(number))
        frames = []
        at = 0
        for _ in range(self.rng.choice((0, 1, 2, 5))):
            frame = []
            for _ in range(self.rng.choice((1, 3, 12))):
                pad = "x" * self.rng.choice((0, 10, 300))
                body = msgspec.json.encode({"by": self.name, "tx": number, "i": at, "pad": pad})
                frame.append((self.rng.choice("ab"), body))
                at += 1
            frames.append(frame)
        self.planned.append(Planned(key, frames))
        self._begin(self.planned[-1])

    def _begin(self, planned: Planned) -> None:
        parts: dict[str, list[Command | tuple[Command, MessageBatch]]] = {}
        for at, frame in enumerate(planned.frames):
            part = f"{at % 2}.{self.attempts}"
            builder = BatchBuilder()
            for topic, body in frame:
                builder.add(topic, body)
            batch = MessageBatch.parse(builder.build().encode())
            stage = Stage(id=self._id(), transaction=planned.key, part=part)
            parts.setdefault(part, []).append(stage)
            self._todo.append(("stage", stage, batch))
        for part in parts:
            self._todo.append(("prepare", Prepare(id=self._id(), transaction=planned.key, part=part), None))
        self._parts, self._prepared = tuple(sorted(parts)), set()
        commit = Commit(id=self._id(), transaction=planned.key, parts=self._parts)
        self._todo.append(("commit", commit, None))

    def _id(self) -> int:
        assert self.peer is not None
        self.peer.ids += 1
        return self.peer.ids

    def act(self, world: EngineWorld) -> None:
        """Process the answers, then send the next command unless it must wait for them."""
        peer, current = self.peer, self.current
        assert peer is not None
        for number in [number for number in self._waiting if number in peer.answers]:
            (what, part), answer = self._waiting.pop(number), peer.answers[number]
            if isinstance(answer, Ack) and answer.code:
                assert answer.code != "transaction_unknown", "a durable part is lost"
                world.counts[f"refused: {answer.code}"] += 1
                # After any refusal, restart with parts of other names.
                self.attempts += 1
                self._waiting, self._todo = {}, []
                if current is not None:
                    self._begin(current)
                return
            expected = {"stage": "Ack", "prepare": "Staged", "commit": "Committed"}[what]
            assert type(answer).__name__ == expected, answer
            if isinstance(answer, Staged):
                self._prepared.add(part)
            if isinstance(answer, Committed) and current is not None:
                current.committed = True
                world.counts["committed"] += 1
                world.counts["committed before"] += answer.repeated
                assert answer.repeated or answer.messages == len(current.bodies)
                return
        if not self._todo:
            return
        what, command, batch = self._todo[0]
        # Stages are pipelined. Commands that depend on them wait for their answers.
        if what != "stage" and self._waiting:
            return
        del self._todo[0]
        assert isinstance(command, Stage | Prepare | Commit)
        self._waiting[command.id] = what, "" if isinstance(command, Commit) else command.part
        peer.send(command, batch)

    def abort(self, world: EngineWorld) -> None:
        """Give the current one up."""
        current, peer = self.current, self.peer
        if current is None or peer is None or any(what == "commit" for what, _ in self._waiting.values()):
            return
        peer.send(Abort(id=self._id(), transaction=current.key))
        current.abandoned = True
        self._waiting, self._todo = {}, []
        world.counts["aborted"] += 1
