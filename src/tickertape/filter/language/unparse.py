"""Write a syntax tree as filter text with all brackets; parsing the text gives an equal tree."""

from __future__ import annotations

from typing import Final

from tickertape.filter.language.ast import (
    CONDITIONS,
    Affix,
    And,
    Arithmetic,
    Between,
    Call,
    Comparison,
    Constant,
    Field,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
)

_ATOMS: Final = (Field, Literal, Call)


def unparse(node: Node) -> str:
    """`node` as the text of a filter."""
    if isinstance(node, Literal):
        return constant(node.value)
    if isinstance(node, Field):
        return str(node.path)
    if isinstance(node, Call):
        return f"{node.name}({', '.join(map(unparse, node.arguments))})"
    if isinstance(node, And | Or):
        return (" AND " if isinstance(node, And) else " OR ").join(map(_term, node.terms))
    if isinstance(node, Not):
        return f"NOT {_term(node.operand)}"
    if isinstance(node, Negative):
        return f"-{_operand(node.operand)}" if not _is_number(node.operand) else f"-({unparse(node.operand)})"
    if isinstance(node, Arithmetic | Comparison):
        return f"{_operand(node.left)} {node.operator} {_operand(node.right)}"
    assert isinstance(node, Between | In | Like | Affix | IsNull | IsNan)
    return f"{_operand(node.operand)} {_predicate(node)}"


def constant(value: Constant) -> str:
    """Return a constant as a literal."""
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NAN_VALUE()" if value != value else repr(value)


def _predicate(node: Between | In | Like | Affix | IsNull | IsNan) -> str:
    if isinstance(node, Between):
        return f"BETWEEN {_operand(node.low)} AND {_operand(node.high)}"
    if isinstance(node, Like):
        return f"LIKE {constant(node.pattern)}"
    if isinstance(node, IsNull | IsNan):
        return "IS NULL" if isinstance(node, IsNull) else "IS NAN"
    word = "IN" if isinstance(node, In) else "ENDS WITH" if node.ends else "BEGINS WITH"
    return f"{word} ({', '.join(map(unparse, node.members))})"


def _is_number(node: Node) -> bool:
    return isinstance(node, Literal) and not isinstance(node.value, str)


def _operand(node: Node) -> str:
    return unparse(node) if isinstance(node, _ATOMS) else f"({unparse(node)})"


def _term(node: Node) -> str:
    simple = isinstance(node, _ATOMS) or (
        isinstance(node, CONDITIONS) and not isinstance(node, And | Or | Not)
    )
    return unparse(node) if simple else f"({unparse(node)})"
