"""Documentation of errors and limits, tests of numbered behaviours, and links of pages."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tickertape.base import errors

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# Numbers of docs/reference/behaviours.md without a test. Numbers are only ever removed.
NOT_YET: list[int] = []

# The name of a limit ends with its unit and an optional kind of bound ...
UNIT = re.compile(
    r"_(bytes|seconds|ms|micros|messages|commits|segments)(_(max|min|default|target|first|idle))?$",
    re.IGNORECASE,
)
# ... or is a unit itself.
UNITS = {"KIB", "MIB", "GIB"}


# -- errors -------------------------------------------------------------------------------------------


def test_error_classes_have_distinct_codes() -> None:
    waiting: list[type[errors.TickertapeError]] = [errors.TickertapeError]
    classes = []
    while waiting:
        kind = waiting.pop()
        classes.append(kind)
        waiting.extend(kind.__subclasses__())
    assert len({kind.code for kind in classes}) == len(classes)


# -- limits -------------------------------------------------------------------------------------------


def undescribed_limits(source: str) -> list[str]:
    """Names assigned at module level without docstring, comment or unit."""
    lines = source.splitlines()
    body = ast.parse(source).body
    wrong = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name = node.target.id
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        commented = "#" in lines[node.lineno - 1]
        if not (documented or commented or UNIT.search(name) or name in UNITS):
            wrong.append(name)
    return wrong


LIMITS = sorted((ROOT / "src" / "tickertape").glob("*/limits.py"))


@pytest.mark.parametrize("path", LIMITS, ids=lambda path: path.parent.name)
def test_limit_names_have_a_unit_or_a_description(path: Path) -> None:
    assert undescribed_limits(path.read_text(encoding="utf-8")) == []


def test_limit_rule_finds_names_without_unit_and_description() -> None:
    assert undescribed_limits("a_max: Final = 1\nb_bytes_max: Final = 2\n") == ["a_max"]
    assert undescribed_limits('a_max: Final = 1\n"""How many of a."""\nb: Final = 1  # why\n') == []


@pytest.mark.parametrize("package", [path.parent.name for path in LIMITS])
def test_limits_are_plain_positive_numbers(package: str) -> None:
    hidden = {"annotations", "Final"}
    for name, value in vars(import_module(f"tickertape.{package}.limits")).items():
        if name.startswith(("_", "@")) or name in hidden or isinstance(value, ModuleType):  # @: pytest's own
            continue
        assert isinstance(value, int | float), name
        assert value > 0, name


# -- numbered behaviours ------------------------------------------------------------------------------


def behaviours() -> list[int]:
    text = (DOCS / "reference" / "behaviours.md").read_text(encoding="utf-8")
    return [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]


def marked_behaviours(source: str) -> set[int]:
    """The numbers in `behaviour` markers of test functions."""
    return {
        argument.value
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
        for marker in function.decorator_list
        if isinstance(marker, ast.Call) and ast.unparse(marker.func) == "pytest.mark.behaviour"
        for argument in marker.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


@cache
def behaviours_with_a_test() -> set[int]:
    """The numbers in `behaviour` markers of all test files."""
    paths = (ROOT / "tests").rglob("test_*.py")
    return {number for path in paths for number in marked_behaviours(path.read_text(encoding="utf-8"))}


def test_marked_behaviours_are_the_numbers_of_markers_on_test_functions() -> None:
    on = "@pytest.mark.behaviour({})\n{}def {}() -> None: ...\n"
    assert marked_behaviours(on.format("5", "", "test_a")) == {5}
    assert marked_behaviours(on.format("7, 8", "async ", "test_a")) == {7, 8}
    assert marked_behaviours(on.format("5", "", "helper") + on.format("", "", "test_a")) == set()
    assert marked_behaviours("@pytest.mark.timeout(5)\ndef test_exact_05_a() -> None: ...\n") == set()


def test_numbered_behaviours_each_have_a_marked_test() -> None:
    missing = [number for number in behaviours() if number not in behaviours_with_a_test()]
    assert missing == NOT_YET, "a behaviour has no test, or NOT_YET has one that has a test"


def test_behaviour_markers_have_only_numbers_of_the_page() -> None:
    assert behaviours_with_a_test() <= set(behaviours())


def test_numbered_behaviours_are_in_ascending_order() -> None:
    numbers = behaviours()
    assert numbers[:11] == list(range(1, 12))
    assert numbers == sorted(set(numbers))


# -- links --------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_link_targets_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert not [target for target in local if not (page.parent / target).exists()]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_link_anchors_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert not [(path, anchor) for path, anchor in targets if anchor not in anchors(path)]


def test_glossary_terms_are_sorted_and_have_a_link() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(terms) >= 70
    assert terms == sorted(terms, key=lambda term: term.lower().replace("-", " "))
    sections = text.split("\n## ")[1:]
    assert not [section for section in sections if not re.search(r"^See \[", section, re.MULTILINE)]


def test_pages_that_the_source_names_exist() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in [*(ROOT / "src").rglob("*.py"), *DOCS.rglob("*.md")]
        for name in re.findall(r"(?<![\w/.-])[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert named
    known = {page.relative_to(ROOT).as_posix() for page in pages()}
    known |= {page.name for page in (DOCS / "formats").glob("*.md")}
    links = {(page.relative_to(ROOT).as_posix(), link) for page in DOCS.rglob("*.md") for link in local(page)}
    assert not {(where, name) for where, name in named - links if name not in known}


def local(page: Path) -> list[str]:
    """Links of a page to files beside it."""
    return re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


def site_navigation() -> list[Path]:
    """Pages that index.md names in the sections of the documentation site."""
    sections = re.findall(
        r"^```\{tickertape\} contents .*?: (.*)$", (DOCS / "index.md").read_text(), re.MULTILINE
    )
    return [path for section in sections for name in section.split() for path in DOCS.glob(f"{name}.md")]


def test_every_page_is_reachable_from_the_index() -> None:
    waiting = [DOCS / "README.md", DOCS / "index.md", *site_navigation()]
    reached = set()
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        waiting.extend((page.parent / target).resolve() for target in targets if "://" not in target)
    assert not [page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md") if page not in reached]
