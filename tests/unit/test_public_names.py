"""Public names: each resolves, and the import of the package loads no submodule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.base.errors import all_codes
from tickertape.cli.commands.error import explanations


@pytest.mark.parametrize("name", tt.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(tt, name)
    assert value is getattr(tt, name)
    assert name in dir(tt)


def test_every_documented_error_is_public() -> None:
    listed = explanations()
    assert listed.keys() == all_codes().keys()
    for code, name in ((code, row.name) for code, row in listed.items()):
        assert name in tt.__all__
        assert getattr(tt, name) is all_codes()[code]


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tt.no_such_name


def test_package_import_loads_no_submodule() -> None:
    code = "import sys, tickertape; print([m for m in sys.modules if m.startswith('tickertape.')])"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=source_environment()
    )
    assert shown.stdout.strip() == "[]"


DEVELOPMENT = ("duckdb", "hypothesis", "pytest", "_pytest", "bson")


@pytest.mark.parametrize("module", ["tickertape.testing", "examples.demo.story"])
def test_public_modules_import_without_development_dependencies(module: str) -> None:
    root = Path(__file__).parents[2]
    code = f"import sys; sys.modules.update(dict.fromkeys({DEVELOPMENT!r})); import {module}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=source_environment(),
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
