"""Rules for source text and syntax trees: layers, purity, sizes, skips and exceptions."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "tickertape"

MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 60
LINE_CHARACTERS_MAX = 110

# The layers that each layer may import. "tickertape" is the package itself: only the public names.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "payload": {"base"},
    "batch": {"base", "payload"},
    "filter": {"base", "payload", "batch"},
    "wire": {"base", "batch"},
    "journal": {"base", "batch"},
    "security": {"base"},
    "engine": {"base", "payload", "batch", "filter", "wire", "journal"},
    "archive": {"base", "payload", "batch", "filter"},
    "server": {"base", "payload", "batch", "filter", "wire", "journal", "engine", "archive", "security"},
    "client": {"base", "payload", "batch", "filter", "wire", "security"},
    "spark": {"base", "payload", "batch", "filter", "wire", "journal", "client", "archive", "security"},
    "cli": {
        "tickertape",
        "base",
        "payload",
        "batch",
        "filter",
        "wire",
        "journal",
        "engine",
        "server",
        "client",
        "spark",
        "archive",
        "security",
    },
    "testing": {"tickertape", "base", "payload", "batch", "wire", "journal", "engine", "server", "client"},
    "tickertape": {"base", "batch", "client", "security"},
    "pyspark_tickertape": {"spark"},
}

# Third-party packages by layer. All layers but the pure ones may use the standard library.
OTHERS: dict[str, set[str]] = {
    "base": {"msgspec", "crc32c"},
    "payload": {"msgspec", "bson"},
    "batch": {"msgspec", "numpy", "pyarrow"},
    "filter": {"lark", "re2", "numpy"},
    "wire": {"msgspec", "numpy"},
    "journal": {"msgspec", "numpy"},
    "security": {"msgspec"},
    "engine": {"msgspec", "numpy", "pyroaring"},
    "archive": {"msgspec", "numpy", "pyarrow", "deltalake"},
    "server": {"msgspec", "numpy", "uvloop", "h11", "prometheus_client"},
    "client": {"msgspec", "numpy", "pyarrow", "duckdb"},
    "spark": {"msgspec", "numpy", "pyarrow", "pyspark", "deltalake"},
    "cli": {"msgspec", "click", "rich", "re2", "pyarrow", "pyspark", "py4j", "deltalake"},
    "testing": {"msgspec", "numpy", "pytest"},
    "tickertape": set(),
    "pyspark_tickertape": set(),
}

# The pure parts meet time, disk, network and chance only through their arguments.
# fmt: off
IMPURE = frozenset({
    "asyncio", "concurrent", "fcntl", "logging", "mmap", "multiprocessing", "os", "pathlib", "queue",
    "random", "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess",
    "tempfile", "threading", "time", "uuid", "uvloop",
})
# fmt: on
PURE_LAYERS = {"base", "payload", "batch", "filter", "wire", "engine", "journal"}
IMPURE_BY_NATURE = {"journal/disk.py", "journal/kernel_aio.py"}
PURE_BY_DUTY = {
    "client/publishing/in_flight.py",
    "client/protocol/calls.py",
    "client/ha/authenticator.py",
    "client/ha/server_chooser.py",
    "client/protocol/heartbeat.py",
    "client/protocol/core.py",
    "client/subscriptions/registry.py",
    "client/publishing/send_buffer.py",
    "client/ha/policies.py",
    "client/ha/delay_strategy.py",
    "client/ha/reconnect.py",
    "client/subscriptions/duplicates.py",
    "client/protocol/logon.py",
    "client/common/connection_state.py",
    "client/ha/subscription_manager.py",
    "client/publish_store/unpersisted.py",
    "client/publish_store/format.py",
    "client/bookmark_store/progress.py",
    "client/bookmark_store/ring_format.py",
    "client/bookmark_store/log_format.py",
}
IMPURE_CALLS = {"open", "input", "print", "breakpoint"}
CLOCK_READS = {"now", "utcnow", "today"}


def python_files(*trees: str) -> list[Path]:
    return sorted(path for tree in trees for path in (ROOT / tree).rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file, outermost first. All rules share one walk."""
    return list(ast.walk(tree_of(path)))


def place(path: Path, node: ast.AST | int = 0) -> str:
    line = node if isinstance(node, int) else getattr(node, "lineno", 0)
    return f"{path.relative_to(ROOT)}:{line}"


# -- layers -------------------------------------------------------------------------------------------


def layer_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    if parts[0] != "tickertape":
        return parts[0]
    if parts[1] == "__main__.py":
        return "cli"
    return parts[1] if len(parts) > 2 else "tickertape"


def is_pure(path: Path) -> bool:
    if not path.is_relative_to(PACKAGE):
        return False
    inside = path.relative_to(PACKAGE).as_posix()
    return (layer_of(path) in PURE_LAYERS and inside not in IMPURE_BY_NATURE) or inside in PURE_BY_DUTY


def imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the full dotted names of all modules that a file imports, those for type checking too."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path, node)}: relative import"
            module = node.module or ""
            if module == "tickertape":  # `from tickertape import base` imports the layer
                yield from (
                    (node, f"tickertape.{a.name}" if a.name in LAYERS else module) for a in node.names
                )
            else:
                yield node, module


def wrong_import(path: Path, name: str) -> str | None:
    layer = layer_of(path)
    top, *rest = name.split(".")
    if top == "tickertape":
        target = rest[0] if rest and rest[0] in LAYERS else "tickertape"
        allowed = target == layer or target in LAYERS[layer]
        return None if allowed else f"layer {layer} must not import layer {target}"
    if top in LAYERS:
        return None if top == layer else f"nothing imports {top}"
    if top in sys.stdlib_module_names:
        impure = top in IMPURE and is_pure(path)
        return f"a pure module must not import {top}: take it as an argument" if impure else None
    return None if top in OTHERS[layer] else f"layer {layer} must not depend on {top}"


def test_every_layer_is_known() -> None:
    found = {layer_of(path) for path in python_files("src")}
    assert found <= set(LAYERS), f"name the layer in tests/test_tidy.py: {sorted(found - set(LAYERS))}"
    assert set(LAYERS) == set(OTHERS)


def test_imports_follow_the_layers() -> None:
    wrong = [
        f"{place(path, node)}: {reason}"
        for path in python_files("src")
        for node, name in imports(path)
        if (reason := wrong_import(path, name))
    ]
    assert not wrong, "\n".join(wrong)


def test_layers_have_no_cycle() -> None:
    order: list[str] = []
    left = dict(LAYERS)
    while left:
        free = sorted(layer for layer, needs in left.items() if needs <= set(order))
        assert free, f"these layers wait for each other: {sorted(left)}"
        order.extend(free)
        left = {layer: needs for layer, needs in left.items() if layer not in order}
    assert "client" not in LAYERS["server"]
    assert "server" not in LAYERS["client"]
    assert not [layer for layer, needs in LAYERS.items() if "testing" in needs]


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("batch/derive.py", "tickertape.base.errors", True),
        ("batch/derive.py", "tickertape.wire.frames", False),
        ("batch/derive.py", "select", False),
        ("batch/derive.py", "tickertape.batch.derive", True),
        ("wire/frames.py", "asyncio", False),
        ("journal/disk.py", "os", True),
        ("journal/commit/group_commit.py", "os.path", False),
        ("client/protocol/core.py", "time", False),
        ("client/blocking/client.py", "time", True),
        ("client/blocking/client.py", "tickertape.server.app", False),
        ("server/app.py", "tickertape.client", False),
        ("server/app.py", "tickertape", False),
        ("engine/broker.py", "tickertape.testing.clock", False),
        ("cli/commands/serve.py", "rich.console", True),
        ("server/app.py", "rich", False),
    ],
)
def test_layer_rule_finds_wrong_imports(module: str, name: str, allowed: bool) -> None:
    assert (wrong_import(PACKAGE / module, name) is None) is allowed


def impure_calls(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in IMPURE_CALLS:
            yield f"{place(path, node)}: {called.id}() in a pure module"
        elif isinstance(called, ast.Attribute) and called.attr in CLOCK_READS:
            owner = called.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name in {"datetime", "date"}:
                yield f"{place(path, node)}: reads the clock; take a Now"


def test_pure_modules_make_no_impure_calls() -> None:
    wrong = [line for path in python_files("src") if is_pure(path) for line in impure_calls(path)]
    assert not wrong, "\n".join(wrong)


# -- sizes and texts ----------------------------------------------------------------------------------


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a docstring, which do not count: those of public calls document each argument."""
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def test_modules_functions_and_lines_stay_small() -> None:
    wrong = []
    for path in python_files("src", "tests", "examples"):
        lines = text_of(path).splitlines()
        if len(lines) > MODULE_LINES_MAX:
            wrong.append(f"{place(path)}: {len(lines)} lines; is it one noun?")
        wrong.extend(
            f"{place(path, n)}: {len(line)} characters"
            for n, line in enumerate(lines, 1)
            if len(line) > LINE_CHARACTERS_MAX
        )
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
                if size > FUNCTION_LINES_MAX:
                    wrong.append(f"{place(path, node)}: {node.name} has {size} lines")
    assert not wrong, "\n".join(wrong)


SUMMARY_CHARACTERS_MAX = 100


def test_every_module_begins_with_a_summary() -> None:
    wrong = []
    for path in python_files("src"):
        if not text_of(path).strip():  # an empty __init__.py only makes a package
            continue
        summary = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        if not 0 < len(summary) <= SUMMARY_CHARACTERS_MAX or not summary.endswith("."):
            wrong.append(f"{place(path)}: the docstring has no summary of at most 100 characters")
    assert not wrong, "\n".join(wrong)


def test_source_has_no_open_tasks() -> None:
    marker = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b")
    files = python_files("src", "tests", "examples")
    files += [p for tree in ("script", ".ci", "docs") for p in (ROOT / tree).rglob("*") if p.is_file()]
    wrong = [
        f"{place(path, n)}: {line.strip()}"
        for path in files
        if path.suffix != ".pyc"
        for n, line in enumerate(text_of(path).splitlines(), 1)
        if marker.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_bare_skip(node: ast.AST) -> bool:
    """A skip or expected failure that does not say why."""
    if isinstance(node, ast.Call):
        name = dotted(node.func).removeprefix("pytest.").removeprefix("mark.")
        if dotted(node.func).split(".")[0] != "pytest":
            return False
        has_reason = any(k.arg == "reason" for k in node.keywords)
        if name == "skip":
            return not node.args and not has_reason
        return name in {"skipif", "xfail", "importorskip"} and not has_reason
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return any(dotted(d) in {"pytest.mark.skip", "pytest.mark.xfail"} for d in node.decorator_list)
    return False


def test_no_test_is_skipped_without_a_reason() -> None:
    wrong = [
        f"{place(path, node)}: say why (reason=)"
        for path in python_files("tests")
        for node in nodes_of(path)
        if is_bare_skip(node)
    ]
    assert not wrong, "\n".join(wrong)


# -- exceptions ---------------------------------------------------------------------------------------


def is_blind(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted(kind) in {"Exception", "BaseException"} for kind in kinds)


def raises(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler raises. A function that it defines does not count."""
    waiting: list[ast.AST] = list(handler.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def unexplained_handlers(source: str, nodes: Iterable[ast.AST]) -> list[int]:
    lines = source.splitlines()
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.ExceptHandler)
        and is_blind(node)
        and not raises(node)
        and not re.search(r"# noqa: BLE001\s+(--|-|:)\s*\S.{9,}", lines[node.lineno - 1])
    ]


def test_no_exception_is_swallowed() -> None:
    wrong = [
        f"{place(path, line)}: raise again, or `# noqa: BLE001 -- why`"
        for path in python_files("src", "tests", "examples")
        for line in unexplained_handlers(text_of(path), nodes_of(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("clause", "accepted"),
    [
        ("except Exception:\n    pass", False),
        ("except:\n    pass", False),
        ("except (ValueError, BaseException):\n    x = 1", False),
        ("except Exception:  # noqa: BLE001\n    pass", False),
        ("except Exception:  # noqa: BLE001 -- the handler's outcome is counted\n    pass", True),
        ("except BaseException:\n    x = 1\n    raise", True),
        ("except Exception:\n    def later():\n        raise ValueError", False),
        ("except ValueError:\n    pass", True),
    ],
)
def test_exception_rule_finds_unexplained_handlers(clause: str, accepted: bool) -> None:
    source = f"try:\n    x = 0\n{clause}\n"
    assert (not unexplained_handlers(source, ast.walk(ast.parse(source)))) is accepted
