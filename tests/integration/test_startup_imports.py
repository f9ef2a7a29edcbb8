"""Modules that help, completion, the client and a server import at their start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import source_environment
from tickertape.cli.support import command_table

HEAVY = {"pyarrow", "numpy", "ssl", "asyncio", "logging", "email", "importlib.metadata", "msgspec", "rich"}
"""Modules that only some commands need."""
HELP_MODULES_MAX = 130
"""Modules of a help text, most of them from click."""
CLIENT_MODULES_MAX = 131
"""Modules of Tickertape that a blocking client imports."""
CLIENT_OTHERS_MAX = 155
"""Modules of other packages that a blocking client imports, without numpy."""
SERVER_MODULES_MAX = 338
"""Modules of Tickertape that a server imports before it is ready."""
SERVER_OTHERS_MAX = 245
"""Modules of other packages that a server imports before it is ready, without numpy."""

COMMAND_LINE = "from tickertape.cli import main; main()"
REPORT = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"


def modules_after(program: str, *arguments: str, cwd: Path, **variables: str) -> tuple[str, set[str]]:
    """Run a program to its end. Return its output and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT + program, *arguments],
        env={**source_environment(), **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, set(done.stderr.split())


def is_imported(name: str, modules: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in modules)


def counts(modules: set[str]) -> tuple[int, int]:
    """Return the number of modules of Tickertape, and of others without numpy, whose versions differ."""
    own = sum(is_imported("tickertape", {module}) for module in modules)
    return own, len(modules) - own - sum(is_imported("numpy", {module}) for module in modules)


def command_modules() -> set[str]:
    """Return the modules of all commands, from all command tables."""
    tables = [table for name, table in vars(command_table).items() if name.isupper() and name[0] != "_"]
    return {entry.module for table in tables for entry in table.values()}


def test_help_imports_no_command_and_no_heavy_module(tmp_path: Path) -> None:
    output, modules = modules_after(COMMAND_LINE, "--help", cwd=tmp_path)
    assert "  serve          Start a server.\n" in output
    assert "tickertape.cli.commands.serve" in command_modules()
    assert {name for name in HEAVY | command_modules() if is_imported(name, modules)} == set()
    assert len(modules) <= HELP_MODULES_MAX


def test_help_of_a_nested_group_imports_only_the_group(tmp_path: Path) -> None:
    output, modules = modules_after(COMMAND_LINE, "journal", "--help", cwd=tmp_path)
    assert "  verify  Verify all checksums and report corruption.\n" in output
    assert command_modules() & modules == {"tickertape.cli.journal"}
    assert {name for name in HEAVY if is_imported(name, modules)} == set()


def test_completion_of_a_command_name_imports_no_command(tmp_path: Path) -> None:
    asked = {"_TICKERTAPE_COMPLETE": "zsh_complete", "COMP_WORDS": "tickertape se", "COMP_CWORD": "1"}
    output, modules = modules_after(COMMAND_LINE, cwd=tmp_path, **asked)
    assert output.split("\n")[:3] == ["plain", "serve", "Start a server."]
    assert command_modules() & modules == set()


def test_help_of_serve_imports_no_server(tmp_path: Path) -> None:
    output, modules = modules_after(COMMAND_LINE, "serve", "--help", cwd=tmp_path)
    assert "Usage: tickertape serve " in output
    assert {name for name in {*HEAVY, "tickertape.server"} if is_imported(name, modules)} == set()


def test_client_imports_no_module_of_other_clients_and_of_tls(tmp_path: Path) -> None:
    _, modules = modules_after("import tickertape; tickertape.Client", cwd=tmp_path)
    assert {"numpy", "msgspec", "tickertape.client.blocking.client"} <= modules
    unneeded = {
        "asyncio", "concurrent.futures", "email", "http", "importlib.metadata", "lark", "pyarrow", "re2",
        "rich", "ssl", "subprocess", "tempfile", "uvloop", "zipfile", "tickertape.archive", "tickertape.cli",
        "tickertape.client.aio", "tickertape.engine", "tickertape.filter", "tickertape.journal",
        "tickertape.server", "tickertape.testing",
    }  # fmt: skip
    assert {name for name in unneeded if is_imported(name, modules)} == set()
    own, others = counts(modules)
    assert (own <= CLIENT_MODULES_MAX, others <= CLIENT_OTHERS_MAX) == (True, True), (own, others)


def test_ready_server_has_imported_no_module_of_later_work(tmp_path: Path) -> None:
    program = """if True:
        import gc, os, signal, sys
        import tickertape.cli.commands.serve as serve
        def ready(uris, admin):
            assert "numpy" not in before
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
            assert gc.isenabled()
            assert frozen and frozen[0] > 10_000, "the first collection visits the imported modules"
            print(*sys.modules)
            os.kill(os.getpid(), signal.SIGTERM)
        def collect(whole=gc.collect):
            frozen.append(gc.get_freeze_count())
            return whole()
        serve._say_ready, gc.collect, frozen = ready, collect, []
        before = set(sys.modules)
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
        from tickertape.cli import main
        main()
    """
    arguments = ("serve", "--listen", "tcp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    output, _ = modules_after(program, *arguments, cwd=tmp_path)
    modules = set(output.split())
    assert {"numpy", "uvloop", "tickertape.server.app", "tickertape.engine.broker"} <= modules
    unneeded = {
        "difflib", "email", "h11", "http", "importlib.metadata", "lark", "prometheus_client", "pyarrow",
        "re2", "rich", "zipfile", "tickertape.archive", "tickertape.client", "tickertape.spark",
        "tickertape.testing",
    }  # fmt: skip
    assert {name for name in unneeded if is_imported(name, modules)} == set()
    own, others = counts(modules)
    assert (own <= SERVER_MODULES_MAX, others <= SERVER_OTHERS_MAX) == (True, True), (own, others)
