"""`pipeline init`: created files, and existing ones."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tickertape.cli.support.command_group import cli

EXAMPLES = ("state", "delays", "weather")


@pytest.mark.parametrize("example", EXAMPLES)
def test_init_creates_a_complete_project(tmp_path: Path, example: str) -> None:
    place = tmp_path / "mine"
    arguments = ["pipeline", "init", str(place), "--example", example, "--server", "tcp://10.0.0.1:9007"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert result.stdout == f"{place}: {len(files)} files created. See README.md for the next steps.\n"
    assert {"README.md", "spark-pipeline.yml", ".gitignore", "tests/conftest.py"} < files
    assert len([name for name in files if name.startswith("transformations/")]) == 1
    assert len([name for name in files if name.startswith("tests/test_")]) == 1
    for path in place.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert "{{" not in text, path
            if path.suffix == ".py":
                ast.parse(text, str(path))
    spec = (place / "spark-pipeline.yml").read_text(encoding="utf-8")
    assert f'name: "mine"\nstorage: "file://{place}/pipeline-storage"\n' in spec
    assert 'spark.tickertape.servers: "tcp://10.0.0.1:9007"\n' in spec
    assert "tcp://10.0.0.1:9007" in (place / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "a: b",
        "yes",
        "1.0",
        "#1",
        "- x",
        "\"quoted\" \\ 'it'",
        "{{ server }}",
        "zürich \N{AIRPLANE}",
        "two\nlines\x7f",
    ],
)
def test_init_accepts_any_directory_name(tmp_path: Path, name: str) -> None:
    yaml = pytest.importorskip("yaml", reason="comes with spark-pipelines, which reads the file")
    place = tmp_path / name
    arguments = ["pipeline", "init", str(place), "--example", "delays", "--server", "tls://[::1]:9007"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    spec = yaml.safe_load((place / "spark-pipeline.yml").read_text(encoding="utf-8"))
    assert spec["name"] == name
    assert spec["storage"] == f"{place.as_uri()}/pipeline-storage"
    assert spec["configuration"]["spark.tickertape.servers"] == "tls://[::1]:9007"
    tree = ast.parse((place / "transformations" / "delays.py").read_text(encoding="utf-8"))
    given = {
        key.value: value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }
    assert given["publisher"] == name


def test_init_refuses_and_keeps_existing_files(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear aunt")
    for place in (tmp_path, tmp_path / "letters"):
        result = CliRunner().invoke(cli, ["pipeline", "init", str(place)])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"tickertape: Cannot create a project: '{place}' is ")
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    assert (tmp_path / "letters").read_text() == "dear aunt"


def test_result_as_json_counts_the_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["pipeline", "init", str(tmp_path / "new"), "--output", "json"])
    assert json.loads(result.stdout) == {
        "directory": str(tmp_path / "new"),
        "files": sum(path.is_file() for path in (tmp_path / "new").rglob("*")),
    }
