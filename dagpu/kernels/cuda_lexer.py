"""A lexer and parser for the part of CUDA C++ that `__global__` declarations need: tokens, declarations, numbers.

It is not a C++ compiler. It evaluates `#if 0` and `#if 1`; of other conditions a caller may decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal, NamedTuple, TypeAlias, final

_WORD = re.compile(r"[^\W\d][\w$]*")


# ---- tokens -------------------------------------------------------------------------------
class Token(NamedTuple):
    """A word, number or punctuator of the source. `line` counts from 1."""

    text: str
    line: int
    guarded: bool  # true inside an #if with an unknown condition
    file: str = ""
    """The included file that it is in; empty for the source itself."""


_TEXT = r"""//[^\n]* | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'"""
_SKIP = rf"""(?P<skip> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{{0,16}})\(.*?\)(?P=mark)"
                | (?:u8|[uUL])?(?:{_TEXT}) | \s+ )"""
_REST = rf"""(?P<number> \.?\d(?:[eEpP][+-] | '?[\w.])* )
       | (?P<word> {_WORD.pattern} )
       | (?P<punct> :: | \.\.\. | . )"""
_LEXEME = re.compile(
    rf"""{_SKIP}
       | (?P<directive> (?:\#|%:)(?: {_TEXT} | [^\n])* )  # outside of directives C++ has no `#`
       | {_REST}""",
    re.VERBOSE | re.DOTALL,
)
_INSIDE = re.compile(f"{_SKIP} | {_REST}", re.VERBOSE | re.DOTALL)
"""The tokens in a directive."""
_DIRECTIVE = re.compile(r"(?:#|%:)\s*(\w+)\s*(.*)", re.DOTALL)
_SPLICE = re.compile(r"\\\r?\n")
_GUARD = re.compile(
    r"^[ \t]*#[ \t]*ifndef[ \t]+(\w+)[^\n]*\n\s*#[ \t]*define[ \t]+(\w+)[ \t]*(?://[^\n]*|\r)?$", re.MULTILINE
)
_SPACES = frozenset(("device", "constant", "managed", "shared", "global", "host"))
_ANNOTATIONS = frozenset(("__attribute__", "__location__", "__annotate__"))
_DEFINE = re.compile(r"([^\W\d]\w*)(\()?(.*)", re.DOTALL)
# The state of one branch of an #if. "done": this branch and all later ones are dead.
_Branch: TypeAlias = Literal["live", "dead", "maybe", "done"]
_CONDITIONALS = frozenset(("if", "ifdef", "ifndef", "else", "elif", "elifdef", "elifndef", "endif"))
_NEXT_BRANCH: Mapping[_Branch, _Branch] = {"live": "done", "dead": "live", "maybe": "maybe", "done": "done"}
_CONDITIONS: Mapping[str, _Branch] = {"0": "dead", "false": "dead", "1": "live", "true": "live"}
Macros: TypeAlias = dict[str, tuple[str, ...] | None]  # None: a known name that must not be followed


def _token_texts(text: str) -> tuple[str, ...]:
    """Return the texts of the tokens, without comments and literals."""
    return tuple(m.group() for m in _INSIDE.finditer(text) if m.lastgroup != "skip")


class Directive(NamedTuple):
    """A directive that a compiler would follow, other than a condition: `#define`, `#include`, `#pragma` and so on."""

    word: str
    rest: str
    """What stands after the word."""
    line: int
    guarded: bool


Decide: TypeAlias = Callable[[str, tuple[str, ...]], bool | None]
"""Says whether the condition of a directive, such as `ifdef`, holds, by its tokens; None if that is not known."""


def read_tokens(source: str, decide: Decide | None = None) -> Iterator[Token | Directive]:
    """Yield the tokens and directives without comments, literals and dead branches.

    A branch with an unknown condition has a `#` token at its begin and end, so that a declaration that contains one is
    refused. The condition of an include guard, `#ifndef NAME` before `#define NAME`, holds. `decide` is asked for
    conditions, of which `#if 0` and `#if 1` alone are known without it.
    """
    # A line that ends with a backslash is joined to the next one before there are tokens.
    pieces = _SPLICE.split(source)
    joined, cuts = "".join(pieces), [*accumulate(map(len, pieces[:-1])), len(source) + 1]
    guards = {first for first, second in _GUARD.findall(joined) if first == second}
    branches: list[_Branch] = []
    line, cut = 1, 0
    for match in _LEXEME.finditer(joined):
        text = match.group()
        while cuts[cut] <= match.start():
            line, cut = line + 1, cut + 1
        dead = "dead" in branches or "done" in branches
        if match.lastgroup == "directive":
            found = _DIRECTIVE.match(text)
            word, rest = found.groups() if found else ("", "")
            condition = _token_texts(rest)
            if word == "ifndef" and " ".join(condition) in guards:
                branches.append("live")
            elif _conditional(branches, word, condition, decide):
                yield Token("#", line, True)
            elif not dead and word not in _CONDITIONALS:
                yield Directive(word, rest, line, "maybe" in branches)
        elif match.lastgroup != "skip" and not dead:
            yield Token(text, line, "maybe" in branches)
        line += text.count("\n")


def tokenize(source: str) -> tuple[list[Token], Macros]:
    """Return the tokens as `read_tokens`, without directives, and the macros without arguments."""
    tokens: list[Token] = []
    macros: Macros = {}
    for each in read_tokens(source):
        if isinstance(each, Token):
            tokens.append(each)
        elif each.word in ("define", "undef") and (macro := _DEFINE.match(each.rest)):
            body = _token_texts(macro[3])
            sure = each.word == "define" and macro[2] is None and macros.get(macro[1], body) == body
            macros[macro[1]] = body if sure and not each.guarded else None
    return with_annotations(tokens), macros


def with_annotations(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with `__device__` before `__attribute__((device))`, and so for the other words of its kind."""
    found: list[Token] = []
    for at, token in enumerate(tokens):
        if token.text in _ANNOTATIONS and at + 1 < len(tokens) and tokens[at + 1].text == "(":
            inside = tokens[at : past_bracket(tokens, at + 1)]
            found += [token._replace(text=f"__{each.text}__") for each in inside if each.text in _SPACES]
        found.append(token)
    return found


class Definition(NamedTuple):
    """One definition of a macro."""

    params: tuple[str, ...] | None
    """None for a macro without arguments."""
    variadic: bool
    """True if the last one stands for any number of arguments."""
    body: tuple[str, ...]
    sure: bool
    """False under an unknown condition."""


def read_definition(directive: Directive) -> tuple[str, Definition] | None:
    """Return the name and the definition of a `#define`; None for another directive."""
    macro = _DEFINE.match(directive.rest) if directive.word == "define" else None
    if macro is None:
        return None
    if not macro[2]:
        return macro[1], Definition(None, False, _token_texts(macro[3]), not directive.guarded)
    inside, _, rest = macro[3].partition(")")
    params = [_token_texts(part) for part in inside.split(",")] if inside.strip() else []
    names = tuple(["__VA_ARGS__" if texts[:1] in ((), ("...",)) else texts[0] for texts in params])
    variadic = bool(params) and params[-1][-1:] == ("...",)
    return macro[1], Definition(names, variadic, _token_texts(rest), not directive.guarded)


def has_guard(source: str) -> bool:
    """Return true for a header whose tokens are there once, however often it is included."""
    return any(first == second for first, second in _GUARD.findall(source))


def _conditional(branches: list[_Branch], word: str, condition: tuple[str, ...], decide: Decide | None) -> bool:
    """Apply a conditional directive to the open branches.

    Return true if a branch with an unknown condition begins or ends.
    """
    if word in ("if", "ifdef", "ifndef"):
        branches.append(_branch(word, condition, decide))
    elif word in ("else", "elif", "elifdef", "elifndef") and branches:
        was = branches.pop()
        plain = word == "else" or was != "dead"
        branches.append(_NEXT_BRANCH[was] if plain else _branch(word.removeprefix("el"), condition, decide))
    elif word == "endif" and branches:
        return branches.pop() == "maybe"
    else:
        return False
    return branches[-1] == "maybe"


def _branch(word: str, condition: tuple[str, ...], decide: Decide | None) -> _Branch:
    """Return the state of a branch with this condition."""
    if word == "if" and " ".join(condition) in _CONDITIONS:
        return _CONDITIONS[" ".join(condition)]
    holds = None if decide is None else decide(word, condition)
    return "maybe" if holds is None else "live" if holds else "dead"


def past_bracket(tokens: Sequence[Token], start: int) -> int | None:
    """Return the index after the bracket that closes `tokens[start]`, or None. `<` nests only within `<`."""
    opened = [tokens[start].text]
    for i in range(start + 1, len(tokens)):
        text = tokens[i].text
        if text in ("(", "[", "{") or (text == "<" and opened[-1] == "<"):
            opened.append(text)
        elif text in (")", "]", "}"):
            while opened and opened[-1] == "<":  # `<` was a comparison
                opened.pop()
            if opened:
                opened.pop()
        elif text == ">" and opened[-1] == "<":
            opened.pop()
        if not opened:
            return i + 1
    return None


# ---- declarations ---------------------------------------------------------------------------
class Declaration(NamedTuple):
    """The declaration of a `__global__` function. `line` is the line of its name."""

    name: str
    line: int
    template: bool
    inside: Sequence[Token] | None  # the tokens between the parentheses; None if they are not closed
    has_body: bool
    parameters: Sequence[Token] = ()  # the tokens between the `<>` of `template <...>`
    arguments: Sequence[Token] | None = None  # those of `name<...>`; None without them
    scope: tuple[str, ...] = ()  # the namespaces that it is in
    guarded: bool = False  # true inside an #if with an unknown condition
    file: str = ""  # the included file that it is in

    @property
    def place(self) -> str:
        """The file and line of its name, for messages."""
        return place_of(self)


def place_of(at: Token | Declaration) -> str:
    """Return the file and line of a token, for messages."""
    return f"{at.file} line {at.line}" if at.file else f"CUDA source line {at.line}"


def scan_declarations(tokens: Sequence[Token], macros: Macros | None = None) -> list[Declaration]:
    """Return all `__global__` functions in order. `macros` are those that are not expanded in `tokens`."""
    declarations: list[Declaration] = []
    parameters: Sequence[Token] | None = None
    opened: list[tuple[str, ...]] = []  # the namespaces of each open brace
    i = 0
    while i < len(tokens):
        text = tokens[i].text
        if text == "template":
            parameters = parameters or ()
            if i + 1 < len(tokens) and tokens[i + 1].text == "<":
                end = past_bracket(tokens, i + 1) or len(tokens)
                parameters = tokens[i + 2 : end - 1]
                i = end - 1
        elif text in (";", "{", "}"):
            parameters = None
            if text == "{":
                opened.append(())
            elif text == "}" and opened:
                opened.pop()
        elif text == "namespace" and (names := namespace_at(tokens, i)) is not None:
            opened.append(names[0])
            i = names[1]
            continue
        elif text == "__global__" or "__global__" in ((macros or {}).get(text) or ()):
            declaration, i = _declaration(tokens, i + 1, parameters)
            if declaration:
                scope = tuple([name for names in opened for name in names])
                declarations.append(declaration._replace(scope=scope))
            continue
        i += 1
    return declarations


def namespace_at(tokens: Sequence[Token], start: int) -> tuple[tuple[str, ...], int] | None:
    """Return the names of a namespace that begins at `start`, and the index after its `{`; None for an alias."""
    names: list[str] = []
    for i in range(start + 1, len(tokens)):
        text = tokens[i].text
        if text == "{":
            return tuple(names), i + 1
        if text in (";", "=", "}"):
            return None
        if _WORD.fullmatch(text) and text != "inline":
            names.append(text)
    return None


def _declaration(tokens: Sequence[Token], i: int, parameters: Sequence[Token] | None) -> tuple[Declaration | None, int]:
    """Read the declaration after `__global__`, and return it with the index of the next token.

    The name of the function is the last word before the body that has parentheses and is not an attribute. Earlier
    words with parentheses are attributes: `__launch_bounds__(256)`, or a macro of the user's.
    """
    found: Declaration | None = None
    while i < len(tokens) and tokens[i].text not in (";", "{", "}", "__global__"):
        token, after = tokens[i], i + 1
        if _WORD.fullmatch(token.text) and after < len(tokens):
            given: Sequence[Token] | None = None
            if tokens[after].text == "<":
                end = past_bracket(tokens, after)
                given = tokens[after + 1 : (end or len(tokens)) - 1]
                after = end or len(tokens)
            if after < len(tokens) and tokens[after].text == "(":
                end = past_bracket(tokens, after)
                attribute = token.text.startswith("__") and token.text.endswith("__")
                if not attribute and token.text not in ("noexcept", "requires", "decltype", "alignas"):
                    inside = None if end is None else tokens[after + 1 : end - 1]
                    template = parameters is not None or given is not None
                    found = Declaration(
                        token.text, token.line, template, inside, False, parameters or (), given, (), token.guarded,
                        token.file,
                    )  # fmt: skip
                after = end or after + 1
        elif token.text == "[":
            after = past_bracket(tokens, i) or after
        i = after
    if found and i < len(tokens) and tokens[i].text == "{":
        found = found._replace(has_body=True)
    return found, i


def split_at_commas(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Split tokens at the commas outside all brackets."""
    parts: list[Sequence[Token]] = []
    depth = begin = 0
    for i, token in enumerate(tokens):
        depth += (token.text in ("(", "[", "{", "<")) - (token.text in (")", "]", "}", ">"))
        if token.text == "," and depth == 0:
            parts.append(tokens[begin:i])
            begin = i + 1
    return [*parts, tokens[begin:]]


def join_tokens(texts: Sequence[str]) -> str:
    """Return tokens as one text with the usual spaces."""
    return re.sub(r" ?(::|[<\[(]) ?| (?=[>,\]*&)])", r"\1", " ".join(texts))


# ---- whole numbers --------------------------------------------------------------------------
#
# Whole numbers that a CUDA text computes before it runs: conditions of `#if`, extents of arrays, template arguments. An
# expression is evaluated as C++ does it, in 64 bits and with short circuits. What depends on anything that is not known
# has no value: None.

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
