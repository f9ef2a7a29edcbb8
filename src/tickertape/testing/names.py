"""Names of a simulated disk: directories, and the order in which name changes become durable.

Creations, renames and removals are logged in order. A change is durable once every affected directory was
synced. Before that a crash may undo it. A change never survives without an earlier one of the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from tickertape.testing.pages import FileState


class DiskDirectory:
    """One directory: the names that a reader sees (`view`), and those that survive a crash (`durable`)."""

    __slots__ = ("durable", "view")

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.view: dict[str, Node] = {}


Node = FileState | DiskDirectory
_Entry = tuple[DiskDirectory, str]


class _NameChange:
    """Name change of `node`: it gets the name `target` and loses the name `source`, if given."""

    __slots__ = ("failed", "node", "source", "target", "waits")

    def __init__(self, node: Node, target: _Entry | None, source: _Entry | None) -> None:
        self.node = node
        self.target = target
        self.source = source
        self.waits = [directory for directory, _ in self.entries()]
        self.failed = False

    def entries(self) -> list[_Entry]:
        return [entry for entry in (self.target, self.source) if entry is not None]

    @property
    def kind(self) -> str:
        if self.target is None:
            return "removal"
        return "name" if self.source is None else "rename"

    def settled(self) -> bool:
        return not self.waits and not self.failed


class NameLog:
    """All names of one disk: the root directory, and the changes that are not durable yet."""

    def __init__(self) -> None:
        self.root = DiskDirectory()
        self._changes: list[_NameChange] = []

    def link(self, directory: DiskDirectory, name: str, node: Node) -> None:
        """Give a new `node` its name."""
        directory.view[name] = node
        self._changes.append(_NameChange(node, (directory, name), None))

    def rename(self, source: DiskDirectory, old: str, target: DiskDirectory, new: str) -> None:
        """Move a name. The caller has checked both sides."""
        node = source.view.pop(old)
        target.view[new] = node
        self._changes.append(_NameChange(node, (target, new), (source, old)))

    def unlink(self, directory: DiskDirectory, name: str) -> None:
        """Remove a name."""
        node = directory.view.pop(name)
        self._changes.append(_NameChange(node, None, (directory, name)))

    def sync(self, directory: DiskDirectory) -> None:
        """Make the names in `directory` durable, with the earlier changes that they depend on."""
        for change in self._changes:
            change.waits = [d for d in change.waits if d is not directory]
        settling: set[_Entry] = set()
        settled = []
        for change in reversed(self._changes):
            if change.settled() or any(entry in settling for entry in change.entries()):
                settling.update(change.entries())
                settled.append(change)
        for change in reversed(settled):
            _apply(change, lambda place: place.durable)
        done = set(settled)
        self._changes = [change for change in self._changes if change not in done]

    def fail_sync(self, directory: DiskDirectory) -> int:
        """Simulate a failed sync of `directory` and return the number of affected changes.

        These changes count as clean. Only a later change of the same name makes them durable.
        """
        hit = [change for change in self._changes if directory in change.waits]
        for change in hit:
            change.failed = True
        return len(hit)

    def kill_clone(self) -> NameLog:
        """Return a copy of the tree for the next process, with unsynced names."""
        twins: dict[Node, Node] = {}

        def twin(node: Node) -> Node:
            if node not in twins:
                if isinstance(node, FileState):
                    twins[node] = node.kill_clone()
                else:
                    twins[node] = copy = DiskDirectory()
                    copy.view = {name: twin(below) for name, below in node.view.items()}
                    copy.durable = {name: twin(below) for name, below in node.durable.items()}
            return twins[node]

        def directory(original: DiskDirectory) -> DiskDirectory:
            copy = twin(original)
            assert isinstance(copy, DiskDirectory)
            return copy

        clone = NameLog()
        clone.root = directory(self.root)
        for change in self._changes:
            source = change.source and (directory(change.source[0]), change.source[1])
            target = change.target and (directory(change.target[0]), change.target[1])
            copied = _NameChange(twin(change.node), target, source)
            copied.waits = [directory(d) for d in change.waits]
            copied.failed = change.failed
            clone._changes.append(copied)
        return clone

    def crash_clone(self, rng: Random, counts: Counter[str]) -> NameLog:
        """Return a possible tree after power loss. All of it is durable."""
        names = self._crash_names(rng, counts)
        twins: dict[Node, Node] = {}

        def twin(node: Node) -> Node:
            if node not in twins:
                if isinstance(node, FileState):
                    twins[node] = file = FileState(node.crash(rng, counts))
                    file.harm = node.harm
                else:
                    twins[node] = copy = DiskDirectory()
                    fill(copy, node)
            return twins[node]

        def fill(copy: DiskDirectory, original: DiskDirectory) -> None:
            left = names.get(original, original.durable)
            copy.durable = {name: twin(below) for name, below in left.items()}
            copy.view = dict(copy.durable)

        clone = NameLog()
        fill(clone.root, self.root)
        return clone

    def _crash_names(self, rng: Random, counts: Counter[str]) -> dict[DiskDirectory, dict[str, Node]]:
        names: dict[DiskDirectory, dict[str, Node]] = {}
        lost: set[_Entry] = set()
        chance = rng.choice((0.0, 0.5, 0.5, 1.0))
        for change in self._changes:
            for place, _ in change.entries():
                names.setdefault(place, dict(place.durable))
            kept = rng.random() < chance and not any(entry in lost for entry in change.entries())
            counts[f"{change.kind}_kept" if kept else f"{change.kind}_lost"] += 1
            if kept:
                _apply(change, names.__getitem__)
            else:
                lost.update(change.entries())
        return names

    def nodes(self) -> list[FileState]:
        """Return every file that has a name."""
        found: dict[FileState, None] = {}
        waiting = [self.root]
        while waiting:
            for node in waiting.pop().view.values():
                if isinstance(node, DiskDirectory):
                    waiting.append(node)
                else:
                    found[node] = None
        return list(found)


def _apply(change: _NameChange, names_of: Callable[[DiskDirectory], dict[str, Node]]) -> None:
    if change.source is not None:
        source = names_of(change.source[0])
        if source.get(change.source[1]) is change.node:
            del source[change.source[1]]
    if change.target is not None:
        names_of(change.target[0])[change.target[1]] = change.node
