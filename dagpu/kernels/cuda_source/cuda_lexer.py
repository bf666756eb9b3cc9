"""A lexer and parser for the part of CUDA C++ that `__global__` declarations need: tokens, aliases, declarations.

It is not a C++ compiler, and a wrong guess would pass wrong bytes to the GPU. So it follows an alias (`using`,
`typedef`, a macro without arguments) only if the alias is unambiguous: at file scope, outside `#if`, and defined once.
It evaluates `#if 0` and `#if 1`; all other conditions are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

_KEYWORDS = frozenset(("bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "void", "auto"))
IGNORED = frozenset(("volatile", "restrict", "__restrict", "__restrict__", "__grid_constant__", "register", "typename"))
_WORD = re.compile(r"[^\W\d][\w$]*")


# ---- tokens -------------------------------------------------------------------------------
class Token(NamedTuple):
    """A word, number or punctuator of the source. `line` counts from 1."""

    text: str
    line: int
    guarded: bool  # true inside an #if with an unknown condition


_TEXT = r"""//(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \\\r?\n"""
_LEXEME = re.compile(
    rf"""(?P<skip> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{{0,16}})\(.*?\)(?P=mark)"
                | (?:u8|[uUL])?(?:{_TEXT}) | \s+ )
       | (?P<directive> \#(?: {_TEXT} | [^\n])* )  # C++ uses `#` for directives only
       | (?P<number> \.?\d(?:[eEpP][+-] | '?[\w.])* )
       | (?P<word> {_WORD.pattern} )
       | (?P<punct> :: | \.\.\. | . )""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*(.*)", re.DOTALL)
_DEFINE = re.compile(r"([^\W\d]\w*)(\()?(.*)", re.DOTALL)
# The state of one branch of an #if. "done": this branch and all later ones are dead.
_Branch: TypeAlias = Literal["live", "dead", "maybe", "done"]
_NEXT_BRANCH: Mapping[_Branch, _Branch] = {"live": "done", "dead": "live", "maybe": "maybe", "done": "done"}
_CONDITIONS: Mapping[str, _Branch] = {"0": "dead", "false": "dead", "1": "live", "true": "live"}
Aliases: TypeAlias = dict[str, tuple[str, ...] | None]  # None: a known name that must not be followed


def _token_texts(text: str) -> tuple[str, ...]:
    """Return the texts of the tokens, without comments and literals."""
    return tuple(m.group() for m in _LEXEME.finditer(text) if m.lastgroup in ("number", "word", "punct"))


def _add_alias(aliases: Aliases, name: str, body: tuple[str, ...], sure: bool) -> None:
    """Add an alias; its body is None if it is ambiguous or cannot be expanded as text."""
    # Pointers, references and arrays are excluded: `const P x` differs from the pasted text of P.
    usable = sure and aliases.get(name, body) == body and not any(text in "*&()[]{}" for text in body)
    aliases[name] = body if usable else None


def tokenize(source: str) -> tuple[list[Token], Aliases]:
    """Return the tokens without comments, literals, directives and dead branches, and the macros.

    A branch with an unknown condition has a `#` token at its begin and end, so that a declaration that contains one is
    refused.
    """
    tokens: list[Token] = []
    macros: Aliases = {}
    branches: list[_Branch] = []
    line = 1
    for match in _LEXEME.finditer(source):
        text = match.group()
        dead = "dead" in branches or "done" in branches
        if match.lastgroup == "directive":
            found = _DIRECTIVE.match(text)
            word, rest = found.groups() if found else ("", "")
            if word in ("define", "undef") and not dead and (macro := _DEFINE.match(rest)):
                sure = word == "define" and macro[2] is None and "maybe" not in branches
                _add_alias(macros, macro[1], _token_texts(macro[3]), sure)
            elif _conditional(branches, word, " ".join(_token_texts(rest))):
                tokens.append(Token("#", line, True))
        elif match.lastgroup != "skip" and not dead:
            tokens.append(Token(text, line, "maybe" in branches))
        line += text.count("\n")
    return tokens, macros


def macro_bodies(source: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the tokens of all definitions of each macro, also of those with arguments, and under any condition."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for match in _LEXEME.finditer(source):
        directive = _DIRECTIVE.match(match.group()) if match.lastgroup == "directive" else None
        macro = _DEFINE.match(directive[2]) if directive and directive[1] == "define" else None
        if macro:
            found.setdefault(macro[1], []).append(_token_texts(macro[3]))
    return found


def _conditional(branches: list[_Branch], word: str, condition: str) -> bool:
    """Apply a conditional directive to the open branches.

    Return true if a branch with an unknown condition begins or ends.
    """
    if word in ("if", "ifdef", "ifndef"):
        branches.append(_CONDITIONS.get(condition, "maybe") if word == "if" else "maybe")
    elif word in ("else", "elif", "elifdef", "elifndef") and branches:
        was = branches.pop()
        plain = word == "else" or was != "dead"
        branches.append(_NEXT_BRANCH[was] if plain else _CONDITIONS.get(condition, "maybe"))
    elif word == "endif" and branches:
        return branches.pop() == "maybe"
    else:
        return False
    return branches[-1] == "maybe"


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


def scan_declarations(tokens: Sequence[Token], aliases: Aliases) -> list[Declaration]:
    """Return all `__global__` functions in order. Add file-scope `using` and `typedef` names to `aliases`."""
    declarations: list[Declaration] = []
    template, depth, i = False, 0, 0
    while i < len(tokens):
        text = tokens[i].text
        if text == "template":
            template = True
            if i + 1 < len(tokens) and tokens[i + 1].text == "<":
                i = (past_bracket(tokens, i + 1) or len(tokens)) - 1
        elif text in (";", "{", "}"):
            template = False
            depth = max(0, depth + (text == "{") - (text == "}"))
        elif text in ("using", "typedef"):
            _read_alias(tokens, i, aliases, sure=depth == 0 and not template and not tokens[i].guarded)
        elif text == "__global__" or "__global__" in (aliases.get(text) or ()):
            declaration, i = _declaration(tokens, i + 1, template)
            declarations += [declaration] if declaration else []
            continue
        i += 1
    return declarations


def _read_alias(tokens: Sequence[Token], start: int, aliases: Aliases, *, sure: bool) -> None:
    """Read the `using` or `typedef` at `start` and add its alias."""
    end = next((i for i in range(start, len(tokens)) if tokens[i].text in (";", "{")), len(tokens))
    body = tuple(token.text for token in tokens[start + 1 : end])
    if tokens[start].text == "typedef" and len(body) > 1:
        _add_alias(aliases, body[-1], body[:-1], sure)
    elif tokens[start].text == "using" and len(body) > 2 and body[1] == "=":
        _add_alias(aliases, body[0], body[2:], sure)


def _declaration(tokens: Sequence[Token], i: int, template: bool) -> tuple[Declaration | None, int]:
    """Read the declaration after `__global__`, and return it with the index of the next token.

    The name of the function is the last word before the body that has parentheses and is not an attribute. Earlier
    words with parentheses are attributes: `__launch_bounds__(256)`, or a macro of the user's.
    """
    found: Declaration | None = None
    while i < len(tokens) and tokens[i].text not in (";", "{", "}", "__global__"):
        token, after = tokens[i], i + 1
        if _WORD.fullmatch(token.text) and after < len(tokens):
            special = tokens[after].text == "<"
            if special:
                after = past_bracket(tokens, after) or len(tokens)
            if after < len(tokens) and tokens[after].text == "(":
                end = past_bracket(tokens, after)
                attribute = token.text.startswith("__") and token.text.endswith("__")
                if not attribute and token.text not in ("noexcept", "requires", "decltype", "alignas"):
                    inside = None if end is None else tokens[after + 1 : end - 1]
                    found = Declaration(token.text, token.line, template or special, inside, False)
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


# ---- the words of one parameter ---------------------------------------------------------------
def join_tokens(texts: Sequence[str]) -> str:
    """Return tokens as one text with the usual spaces."""
    return re.sub(r" ?(::|[<\[(]) ?| (?=[>,\]*&)])", r"\1", " ".join(texts))


def expand_aliases(texts: Sequence[str], aliases: Aliases, seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the tokens with aliases expanded. An alias is not expanded inside its own expansion."""
    result: list[str] = []
    for i, text in enumerate(texts):
        body = None if text in seen or (i and texts[i - 1] == "::") else aliases.get(text)
        result += [text] if body is None else expand_aliases(body, aliases, seen | {text})
    return result


def without_attributes(texts: list[str]) -> list[str]:
    """Return the tokens without attributes such as `[[maybe_unused]]`."""
    for start in range(len(texts) - 1):
        if texts[start : start + 2] == ["[", "["] and "]" in texts:
            return texts[:start] + without_attributes(texts[texts.index("]") + 2 :])
    return texts


def take_name(texts: list[str]) -> str:
    """Remove and return the name of a parameter: the last word, if a type precedes it. Else return an empty text."""
    qualifiers = IGNORED | {"const"}
    typed = len(texts) > 1 and texts[-2] != "::" and not qualifiers.issuperset(texts[:-1])
    named = typed and _WORD.fullmatch(texts[-1]) and texts[-1] not in _KEYWORDS | qualifiers
    return texts.pop() if named else ""
