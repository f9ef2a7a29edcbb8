"""Structure of the source tree: order of folders, module cycles, class names, constructors, folder sizes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.test_tidy import PACKAGE, ROOT, imports, nodes_of, place, python_files

ORDER: Final[dict[str, str]] = {
    "engine": (
        "broker > transactions > commands > sow, replication > queues, delivery, transient"
        " > retention, subscriptions > conflation > log_reads > matching > sessions, entitlements"
        " > runtime > limits"
    ),
    "engine/queues": "* > state",
    "engine/sow": "* > streams, views > query > state",
    "client": (
        "blocking, aio > api > ha, protocol > queues, subscriptions > sow, sql, publishing"
        " > publish_store, bookmark_store > common > limits"
    ),
    "journal": (
        "offline > journal > recovery, retention > reading > commit > index > format > disk > kernel_aio "
        "> limits"
    ),
    "server": (
        "app > diagnosis, signals > session_expiry, offline_prune, admin, web > engine_driver > startup"
        " > network, storage, access > sync_cost > config > events, clock > limits"
    ),
    "filter": (
        "batch_filter, index > topic_set, pattern_overlap > compiler > functions"
        " > language, contained_errors > limits"
    ),
    "spark": "datasource, last_values > audit > archive, sink, queues > source > common > limits",
}
"""Imports run from left to right only, those for type checkers too. Entries of one level do not import each
other. `*` means all other entries of the folder. An entry need not exist."""

TWINS: Final = {
    "CaughtUp": "transition of a feed, and effect of the client",
    "Command": "of the wire, and the public one of the client",
    "Lease": "of the queue, and of the message at the client",
    "Send": "effect of the engine, and of the client",
    "Subscription": "of the engine, and of the client",
    "SubscriptionRegistry": "of all connections at the server, and of one client",
}
"""Class names that exist twice, and why."""

FILES_MAX: Final = 12
FILES_MIN: Final = 3
FOLDER_EXCEPTIONS: Final[dict[str, str]] = {
    ".": "the package itself",
    "archive": "a file for each step of writing and reading the table",
    "cli": "only folders",
    "client": "only folders",
    "client/api": "a file for each group of calls",
    "cli/commands": "a file for each command",
    "engine/runtime": "a file for each machine that all parts of the engine share",
    "engine/sow": "intake and checkpoints become folders of their own",
    "engine/sow/state": "a file for each noun of ADR 44",
    "client/queues": "acknowledgements only; the rest of a queue is the server's",
    "filter": "what all folders of it share, and the filter over a batch",
    "journal/format": "a file for each stored format",
    "server/access": "rights join it",
    "server/config": "a file for each section",
    "spark": "the two entry points",
    "spark/sink": "options and writer",
}
"""Folders outside these sizes, and why."""

LATE: Final = {
    ("tickertape.batch.message_batch", "tickertape.batch.arrow"): "spares the import of pyarrow",
    ("tickertape.batch.message_batch", "tickertape.batch.pickling"): "only other processes need it",
}
"""Imports inside functions that close a cycle, and why."""

COLLABORATORS_MAX: Final = 6
LARGE_CONSTRUCTORS_MAX: Final = 2
"""Constructors with more positional arguments than that. May only fall."""
CALLABLES_MAX: Final = 20
"""Callables that constructors take, in all. May only fall."""
SET_FROM_OUTSIDE_MAX: Final = 0
"""Assignments to attributes of another object, in all. May only fall."""


# -- order of folders ---------------------------------------------------------------------------------


def levels(order: str) -> dict[str, int]:
    """Return the level of each entry, 0 for the highest."""
    return {
        entry.strip(): level for level, entries in enumerate(order.split(">")) for entry in entries.split(",")
    }


def entry_of(module: str, folder: str) -> str | None:
    """Return the entry of `folder` that contains a dotted module, or None for other modules."""
    prefix = "tickertape." + folder.replace("/", ".") + "."
    return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def misplaced(folder: str) -> Iterator[str]:
    """Yield the imports against the order of a folder."""
    level = levels(ORDER[folder])
    other = level.get("*")
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        importer = entry_of(module_of(path), folder)
        if importer is None:
            continue
        for node, name in imported_modules(path):
            imported = entry_of(name, folder)
            if imported is None or imported == importer:
                continue
            upper, lower = level.get(importer, other), level.get(imported, other)
            if upper is None or lower is None:
                yield f"{place(path)}: {folder}/{importer if upper is None else imported} is not in ORDER"
            elif upper >= lower and not (upper == lower == other):
                yield f"{place(path, node)}: {folder}/{importer} must not import {folder}/{imported}"


@cache
def known_modules() -> frozenset[str]:
    return frozenset(module_of(path) for path in PACKAGE.rglob("*.py") if "project" not in path.parts)


def imported_modules(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Modules that a file imports: `from package import module` names the module."""
    for node, name in imports(path):
        if isinstance(node, ast.ImportFrom) and node.module == name:
            modules = [f"{name}.{alias.name}" for alias in node.names]
            if all(module in known_modules() for module in modules):
                yield from ((node, module) for module in modules)
                continue
        yield node, name


@pytest.mark.parametrize("folder", ORDER)
def test_imports_follow_the_order_of_folders(folder: str) -> None:
    wrong = sorted(set(misplaced(folder)))
    assert not wrong, "\n".join(wrong)


def test_order_of_folders_has_each_entry_once() -> None:
    for folder, order in ORDER.items():
        entries = [entry.strip() for level in order.split(">") for entry in level.split(",")]
        assert not [entry for entry, count in Counter(entries).items() if count > 1], folder


# -- cycles -------------------------------------------------------------------------------------------


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(start: str) -> None:
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in index:
                    index[following] = low[following] = len(index)
                    stack.append(following)
                    work.append((following, iter(sorted(graph[following]))))
                    break
                if following in stack:
                    low[node] = min(low[node], index[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def test_modules_have_no_cycle() -> None:
    """None that only types close either. Packages that hand on names of their own modules do not count."""
    graph: dict[str, set[str]] = {module: set() for module in known_modules()}
    for path in PACKAGE.rglob("*.py"):
        if "project" in path.parts or path.name == "__init__.py":
            continue
        module = module_of(path)
        graph[module] |= {
            name for _, name in imported_modules(path) if name in graph and (module, name) not in LATE
        }
    assert cycles(graph) == []


def test_cycle_search_finds_each_cycle_once() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]


# -- names --------------------------------------------------------------------------------------------


def test_class_names_exist_once() -> None:
    places: dict[str, list[str]] = {}
    for path in python_files("src"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(place(path, node))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in TWINS} == {}
    assert set(TWINS) <= set(twice), "these exist once by now"


# -- constructors -------------------------------------------------------------------------------------


def constructors() -> Iterator[tuple[Path, ast.ClassDef, ast.FunctionDef]]:
    for path in python_files("src"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                        yield path, node, part


def is_callable(argument: ast.arg) -> bool:
    return argument.annotation is not None and "Callable" in ast.unparse(argument.annotation)


def test_constructors_take_few_collaborators_and_callables() -> None:
    large, callables = [], []
    for path, node, init in constructors():
        positional = [*init.args.posonlyargs, *init.args.args][1:]
        arguments = [*positional, *init.args.kwonlyargs]
        if len(positional) > COLLABORATORS_MAX:
            large.append(f"{place(path, init)}: {node.name} takes {len(positional)}")
        callables += [
            f"{place(path, init)}: {node.name}({argument.arg})"
            for argument in arguments
            if is_callable(argument)
        ]
    assert len(large) <= LARGE_CONSTRUCTORS_MAX, "\n".join(large)
    assert len(callables) <= CALLABLES_MAX, "\n".join(callables)


def set_from_outside(path: Path) -> Iterator[str]:
    """Yield assignments `self.part.attribute = ...`, which are the task of `part`."""
    for node in nodes_of(path):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Attribute)
                and isinstance(target.value.value, ast.Name)
                and target.value.value.id == "self"
            ):
                yield f"{place(path, node)}: {ast.unparse(target)}"


def test_nothing_is_set_from_outside() -> None:
    found = [
        line
        for package in ("engine", "client", "server")
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for line in set_from_outside(path)
    ]
    assert len(found) <= SET_FROM_OUTSIDE_MAX, "\n".join(found)


# -- folders ------------------------------------------------------------------------------------------


def test_folders_hold_few_files() -> None:
    sizes = {
        folder.relative_to(PACKAGE).as_posix(): sum(
            path.name != "__init__.py" for path in folder.glob("*.py")
        )
        for folder in {path.parent for path in PACKAGE.rglob("*.py") if "project" not in path.parts}
    }
    wrong = {
        folder: count
        for folder, count in sizes.items()
        if folder not in FOLDER_EXCEPTIONS and count and not FILES_MIN <= count <= FILES_MAX
    }
    assert wrong == {}
    assert not [folder for folder in FOLDER_EXCEPTIONS if folder not in sizes], "no such folder"


PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")


def test_names_of_files_and_folders_are_plain() -> None:
    top = list(ROOT.iterdir())
    trees = [path for path in top if path.is_dir() and not path.name.startswith(".") and path.name != "build"]
    found = [*top, *(path for tree in trees for path in tree.rglob("*"))]
    assert [str(path) for path in found if not PLAIN_NAME.fullmatch(path.name)] == []


# -- the page about it --------------------------------------------------------------------------------

PAGE: Final = ROOT / "docs" / "architecture.md"
TO_COME: Final = re.compile(r"## Places of planned features.*", re.DOTALL)


def test_architecture_page_names_files_and_classes_that_exist() -> None:
    text = TO_COME.sub("", PAGE.read_text(encoding="utf-8"))
    folder = ""
    missing = []
    for name in re.findall(r"`([\w./]+?)`", text):
        if name.endswith((".py", "/")):
            inside = PACKAGE / name
            if not inside.exists() and not (ROOT / name).exists() and not (PACKAGE / folder / name).exists():
                missing.append(name)
            elif inside.exists() and name.endswith(".py"):
                folder = name.rpartition("/")[0]
    classes = {
        node.name for path in python_files("src") for node in nodes_of(path) if isinstance(node, ast.ClassDef)
    }
    drawn = set(re.findall(r"`([A-Z][a-z]+\w*)(?:\.\w+)?`", text))
    missing += sorted(drawn - classes - PUBLIC_WORDS)
    assert missing == []


PUBLIC_WORDS: Final = {"Now"}
