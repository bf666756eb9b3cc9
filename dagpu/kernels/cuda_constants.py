"""Whole numbers that a CUDA text computes before it runs: conditions of `#if`, extents of arrays, template arguments.

An expression is evaluated as C++ does it, in 64 bits and with short circuits. What depends on anything that is not
known has no value: None.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

_NUMBER: Final = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|\d+)[uUlLzZ]*")
_BINARY: Final[Sequence[Mapping[str, Callable[[int, int], int]]]] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": lambda a, b: a | b},
    {"^": lambda a, b: a ^ b},
    {"&": lambda a, b: a & b},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
     "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b)},
    {"<<": lambda a, b: a << min(b, 64), ">>": lambda a, b: a >> min(b, 64)},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
)  # fmt: skip
"""The operators of two operands, from those that bind least."""
_DECIDES: Final = {"||": True, "&&": False}
"""The truth of one operand that decides about both, even if the other one is not known."""
_PAIRS: Final = frozenset(("||", "&&", "==", "!=", "<=", ">=", "<<", ">>"))
_LONGEST: Final = 500
"""The most tokens of an expression that is evaluated."""


class _NoExpressionError(Exception):
    """The tokens are no expression of this kind."""


def number_of(text: str) -> int | None:
    """Return the value of a whole number, `true` or `false`; None for any other token."""
    if text in ("true", "false"):
        return int(text == "true")
    found = _NUMBER.fullmatch(text.replace("'", ""))
    if found is None:
        return None
    digits = found[1]
    octal = digits.isdecimal() and digits[0] == "0" and len(digits) > 1
    return int(digits, 8 if octal else 0 if not digits.isdecimal() else 10)


def value_of(texts: Sequence[str], known: Callable[[str], int | None]) -> int | None:
    """Return the value of an expression of these tokens; None if it has none. `known` gives those of names."""
    if not 0 < len(texts) <= _LONGEST:
        return None
    reader = _Reader(_with_pairs(texts), known)
    try:
        value = reader.choice()
        return value if reader.at_end else None
    except (_NoExpressionError, ZeroDivisionError, OverflowError, RecursionError, ValueError):
        return None


def _with_pairs(texts: Sequence[str]) -> list[str]:
    """Return the tokens with the operators of two signs as one each."""
    found: list[str] = []
    for text in texts:
        if found and found[-1] + text in _PAIRS:
            found[-1] += text
        else:
            found.append(text)
    return found


@final
class _Reader:
    """A reader of one expression."""

    def __init__(self, texts: Sequence[str], known: Callable[[str], int | None]) -> None:
        self._texts = texts
        self._known = known
        self._at = 0

    @property
    def at_end(self) -> bool:
        """True if all tokens are read."""
        return self._at == len(self._texts)

    def _take(self, *wanted: str) -> str:
        if self._at < len(self._texts) and (not wanted or self._texts[self._at] in wanted):
            self._at += 1
            return self._texts[self._at - 1]
        if wanted:
            return ""
        raise _NoExpressionError

    def choice(self) -> int | None:
        """Read an expression with `?:`."""
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self.choice()
        if not self._take(":"):
            raise _NoExpressionError
        no = self.choice()
        return (None if yes != no else yes) if condition is None else yes if condition else no

    def _binary(self, level: int) -> int | None:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while operator := self._take(*_BINARY[level]):
            right = self._binary(level + 1)
            if left is not None and right is not None:
                left = _BINARY[level][operator](left, right)
            elif operator in _DECIDES and any(v is not None and bool(v) is _DECIDES[operator] for v in (left, right)):
                left = int(_DECIDES[operator])
            else:
                left = None
        return left

    def _unary(self) -> int | None:
        text = self._take()
        if text in ("!", "-", "+", "~"):
            value = self._unary()
            if value is None:
                return None
            return {"!": int(not value), "-": -value, "+": value, "~": ~value}[text]
        if text == "(":
            value = self.choice()
            if not self._take(")"):
                raise _NoExpressionError
            return value
        number = number_of(text)
        if number is not None:
            return number
        if not (text[0].isalpha() or text[0] == "_"):
            raise _NoExpressionError
        while self._take("::"):
            text = self._take()
        return self._known(text)
