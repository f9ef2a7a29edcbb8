"""Explanation of a filter: the fields it reads, its normalised form and cost. Nothing is evaluated."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.filter.compiler.analyse import patterns_of, scans
from tickertape.filter.compiler.compile import Filter
from tickertape.filter.compiler.regex import compile_pattern
from tickertape.filter.functions.values import scalar, truth
from tickertape.filter.language.ast import And, Comparison, Field, In, Literal, Node, unparse, walk
from tickertape.filter.limits import filter_operations_max, filter_text_scans_max, pattern_states_max


class Explanation(NamedTuple):
    """Explanation of a filter."""

    text: str
    type: str
    meaning: str
    """The filter with all parentheses and folded constants."""
    fields: tuple[str, ...]
    needs: tuple[str, ...]
    """Inputs other than the body that it reads."""
    always: str | None
    """`true`, `false` or `unknown`, for a filter with the same result for every message."""
    keys: tuple[str, ...]
    """Required comparisons of a field with constants, which an index can use."""
    parts: int
    scans: int
    states: int
    work: int

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        reads = ", ".join(self.fields) or "no fields (the body is not decoded)"
        cost = (
            f"{self.parts} of {filter_operations_max} parts",
            f"{self.scans} of {filter_text_scans_max} text scans",
            f"{self.states} of {pattern_states_max} pattern states",
        )
        return [
            f"means    {self.meaning}",
            f"reads    {reads}",
            *([f"needs    {', '.join(self.needs)}"] if self.needs else []),
            *([f"always   {self.always}"] if self.always else []),
            *(f"key      {key}" for key in self.keys),
            f"cost     {', '.join(cost)}",
        ]


def explain(filter: Filter) -> Explanation:
    """Return the explanation of `filter`."""
    tree = filter.tree
    always = None
    if isinstance(tree, Literal):
        answer = truth(scalar(tree.value))
        always = "unknown" if answer is None else "true" if answer else "false"
    return Explanation(
        filter.text,
        filter.type.name,
        unparse(tree),
        tuple(map(str, filter.paths)),
        tuple(sorted(filter.needs)),
        always,
        tuple(unparse(term) for term in _required(tree) if _is_key(term)),
        sum(1 for node in walk(tree) if not isinstance(node, Literal)),
        len(scans(tree)),
        sum(compile_pattern(pattern).states for pattern, _ in patterns_of(tree)),
        filter.work,
    )


def _required(tree: Node) -> tuple[Node, ...]:
    return tree.terms if isinstance(tree, And) else (tree,)


def _is_key(node: Node) -> bool:
    if isinstance(node, Comparison) and node.operator == "=":
        sides = {type(node.left), type(node.right)}
        return sides == {Field, Literal}
    return (
        isinstance(node, In)
        and isinstance(node.operand, Field)
        and all(isinstance(member, Literal) for member in node.members)
    )
