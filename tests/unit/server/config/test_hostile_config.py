"""Hostile configuration files: each is a short list of problems in bounded time and memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tickertape.base.limits import MIB, topic_bytes_max
from tickertape.engine.limits import topic_names_bytes_max
from tickertape.server.config.config import examine
from tickertape.server.config.toml_lines import TooDeep, check_keys
from tickertape.server.limits import (
    configuration_bytes_max,
    configuration_depth_max,
    configuration_problems_max,
    configuration_total_bytes_max,
    include_depth_max,
    included_files_max,
)

MEMORY_BYTES_MAX = 64 * MIB
"""Memory to check a configuration, whose files have `configuration_total_bytes_max`."""

DEEP = f"Nested more than {configuration_depth_max} levels deep"

FILES: dict[str, tuple[bytes, str]] = {
    "a huge file": (b"#" * (configuration_bytes_max + 1), "it has more than"),
    "a huge line of brackets": (b"a = " + b"[" * (configuration_bytes_max - 10), "nested too deeply"),
    "brackets that close": (b"a = " + b"[" * 200 + b"]" * 200, DEEP),
    "tables in tables": (b"a = " + b"{a = " * 200 + b"1" + b"}" * 200, DEEP),
    "a key of 300,000 parts": (b"a" + b".a" * 300_000 + b" = 1", DEEP),
    "a quoted key of many parts": (b'"a"' + b' . "a"' * 100_000 + b" = 1", DEEP),
    "a heading of 300,000 parts": (b"\n\n[a" + b".a" * 300_000 + b"]", f":3: {DEEP}"),
    "a binary file": (bytes(range(256)) * 100, "not UTF-8 (byte 128)"),
    "zeros": (bytes(4096), "Invalid TOML"),
    "UTF-16": ('[instance]\nname = "a"\n'.encode("utf-16"), "not UTF-8"),
    "a broken character in line 3": (b"\n\nx = '\xff'\n", ":3: not UTF-8"),
    "a quote that never ends": (b'a = """' + b"x" * 900_000, "add the missing closing quote"),
    "a number of 5,000 digits": (b"[journal]\nsegment_size = " + b"9" * 5000, "too many digits"),
    "a number of 5,000 hexadecimal digits": (
        b"[journal]\nsegment_size = 0x" + b"f" * 5000, ":2: journal.segment_size: Number too large",
    ),
    "a size that is not finite": (b"[journal]\nsegment_size = inf", ":2: journal.segment_size: "),
    "an invalid time": (b'[journal]\nsync = "interval"\nsync_interval = nan', "journal.sync_interval: "),
    "an endless time": (b'[journal]\nsync = "interval"\nsync_interval = 1e999', "journal.sync_interval: "),
    "a name that is too long": (b'[instance]\nname = "' + b"n" * 100_000 + b'"', ":2: instance.name: "),
    "a host that is too long": (b'[[transport]]\nlisten = "tcp://' + b"h" * 9999 + b':1"', ":2: transport"),
    "an address with a line in it": (b'[[transport]]\nlisten = "tcp://a\\nb:1"', ":2: transport.listen: "),
    "a key with a line in it": (b'"a\\nb" = 1', r"'a\nb'"),
    "a very long key": (b"k" * 900_000 + b" = 1", "kkkk..."),
    "a file name with a zero": (b'include = ["a\\u0000b"]', ":1: include: Invalid file name '/"),
    "a variable with a strange name": (b'[instance]\nname = "${' + b"A" * 9999 + b'}"', "is not set"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(FILES))
def test_hostile_file_is_a_short_problem_with_line_and_bounded_memory(tmp_path: Path, what: str) -> None:
    data, text = FILES[what]
    file = tmp_path / "c.toml"
    file.write_bytes(data)
    tracemalloc.start()
    config, problems = examine(file, environment={})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert config is None
    assert text in str(problems[0])
    assert all(len(str(problem)) < 600 + len(str(file)) for problem in problems)
    assert all(str(problem).isprintable() for problem in problems)
    assert peak < MEMORY_BYTES_MAX


def test_unusable_file_paths_are_problems_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, text in (
        (tmp_path, "Is a directory"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "absent", "No such file"),
        (tmp_path / ("x" * 300), "too long"),
        (Path("/dev/zero"), "it has more than"),
        (Path("a\0b"), "Invalid file name"),
    ):
        _, problems = examine(path, environment={})
        assert text in str(problems[0])
    (tmp_path / "c.toml").write_text('include = ["loop", "."]')
    _, problems = examine(tmp_path / "c.toml", environment={})
    assert [problem.location.line for problem in problems] == [1, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_without_read_permission_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.touch(mode=0)
    _, problems = examine(file, environment={})
    assert str(problems[0]) == (
        f"Cannot read '{file}': Permission denied. Check the path and its permissions."
    )


def test_include_bombs_are_bounded_in_number_depth_and_bytes(tmp_path: Path) -> None:
    for number in range(12):
        text = ", ".join(f'"{other}.toml"' for other in range(12) if other != number)
        (tmp_path / f"{number}.toml").write_text(f"include = [{text}]\n")
    _, problems = examine(tmp_path / "0.toml", environment={})
    texts = {problem.text.split(":")[0] for problem in problems}
    assert len(problems) <= configuration_problems_max + 1
    assert any(
        text in (f"More than {included_files_max} included files", "Circular include")
        or f"more than {include_depth_max} deep" in text
        for text in texts
    )
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (configuration_bytes_max - 1))
    text = ", ".join(f'"big{number}.toml"' for number in range(9))
    for number in range(9):
        (tmp_path / f"big{number}.toml").symlink_to(big)
    (tmp_path / "c.toml").write_text(f"include = [{text}]\n")
    _, problems = examine(tmp_path / "c.toml", environment={})
    assert f"with it the configuration exceeds {configuration_total_bytes_max} bytes" in str(problems[0])


def test_variable_that_is_not_utf8_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[instance]\nname = "${NAME}"\n')
    _, problems = examine(file, environment={"NAME": os.fsdecode(b"\xff")})
    assert str(problems[0]) == f"{file}:2: instance.name: environment variable 'NAME' is not UTF-8"


def test_arguments_that_are_not_utf8_are_a_problem() -> None:
    odd = os.fsdecode(b"\xff")
    for given in ({"name": odd}, {"data": odd}, {"listen": [f"unix:///{odd}"]}):
        config, problems = examine(**given, environment={})
        assert config is None
        assert "must be UTF-8, not" in str(problems[0])


def test_topic_names_above_the_size_of_the_logon_answer_are_refused(tmp_path: Path) -> None:
    count = topic_names_bytes_max // topic_bytes_max + 1
    names = [f"{number:04d}".ljust(topic_bytes_max - 3, "x") for number in range(count)]
    file = tmp_path / "c.toml"
    file.write_text("".join(f"[[journal.topic]]\nname = '{name}'\n" for name in names))
    _, problems = examine(file, environment={})
    assert f"(limit {topic_names_bytes_max})" in str(problems[0])
    file.write_text("".join(f"[[journal.topic]]\nname = '{name}'\n" for name in names[:-1]))
    assert examine(file, environment={})[1] == []


def test_dots_in_strings_comments_and_numbers_do_not_count_as_nesting() -> None:
    many = "a." * 500
    check_keys(f"x = '{many}'\ny = \"{many}\" # {many}\nz = [{'1.5, ' * 500}]\nw = '''{many}\n{many}'''\n")
    with pytest.raises(TooDeep) as caught:
        check_keys(f"x = '''\n\n'''\n# '\n{many}b = 1\n")
    assert caught.value.line == 5
