"""Field paths: valid and invalid texts with positions, and sets of paths that cost too much."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadFilter, BadPath
from tickertape.payload.limits import (
    path_characters_max,
    path_forms_max,
    path_steps_max,
    path_subscript_max,
    paths_per_reader_max,
)
from tickertape.payload.paths import Path, check_paths, parse_path


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("/field", ("field",)),
        ("/parent/child", ("parent", "child")),
        ("/a/b/@attr", ("a", "b", "@attr")),
        ("/35", ("35",)),
        ("/data[0]", ("data", 0)),
        ("/data[3][12]/x-y.z:w", ("data", 3, 12, "x-y.z:w")),
        ("/naïve/名", ("naïve", "名")),
        (f"/a[{path_subscript_max}]", ("a", path_subscript_max)),
    ],
)
def test_path_text_parses_and_formats_back(text: str, steps: tuple[str | int, ...]) -> None:
    path = parse_path(text)
    assert path.steps == steps
    assert str(path) == text
    assert path == Path(steps)
    assert hash(path) == hash(Path(steps))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("a", 0),
        ("/", 0),
        ("[0]", 0),
        ("/a/", 2),
        ("/a//b", 2),
        ("/a[", 2),
        ("/a[]", 2),
        ("/a[-1]", 2),
        ("/a[x]", 2),
        ("/a[0", 2),
        ("/a[0]b", 5),
        ("/a b", 2),
        ("/a=1", 2),
        ("/a\x01", 2),
        (f"/a[{path_subscript_max + 1}]", 2),
        ("/a[" + "9" * 900 + "]", 2),
        ("/a" * (path_steps_max + 1), 2 * path_steps_max),
        ("/" + "a" * path_characters_max, 0),
    ],
)
def test_invalid_path_is_refused_with_the_error_position(text: str, position: int) -> None:
    with pytest.raises(BadPath) as refused:
        parse_path(text)
    assert refused.value.position == position
    assert isinstance(refused.value, BadFilter | ValueError)
    assert len(str(refused.value)) < 300


def test_the_longest_and_deepest_paths_are_read() -> None:
    assert len(parse_path("/a" * path_steps_max).steps) == path_steps_max
    assert parse_path("/" + "a" * (path_characters_max - 1)).steps == ("a" * (path_characters_max - 1),)


def test_path_of_the_whole_body_formats_as_slash() -> None:
    assert str(Path(())) == "/"


def test_number_of_paths_for_one_reader_is_limited() -> None:
    paths = [Path((f"f{n}",)) for n in range(paths_per_reader_max + 1)]
    check_paths(paths[:-1])
    with pytest.raises(BadPath, match=f"at most {paths_per_reader_max}"):
        check_paths(paths)


def test_too_many_subscript_forms_of_one_path_are_refused() -> None:
    texts = ["/a/a/a/x", "/a[0]/a/a/x", "/a/a[0]/a/x"]
    assert len(texts) == path_forms_max + 1
    check_paths([parse_path(text) for text in texts[:-1]])
    with pytest.raises(BadPath, match=r"Too many forms of the path ./a/a."):
        check_paths([parse_path(text) for text in texts])


def test_subscript_forms_of_a_common_prefix_count_across_different_ends() -> None:
    texts = ["/a/a/a/p", "/a[0]/a/a/q", "/a/a[0]/a/r"]
    with pytest.raises(BadPath, match="'/a/a'"):
        check_paths([parse_path(text) for text in texts])


def test_many_elements_of_one_array_and_deep_subscripts_are_fine() -> None:
    check_paths([Path(("data", n)) for n in range(100)])
    check_paths([Path(("m", 1, 2, 3, 4, 5)), Path(("m", 5, 4, 3, 2, 1))])
