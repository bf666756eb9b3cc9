"""Reads a kernel's `__global__` declaration in CUDA C++ source and holds it against the Python one.

This is no C++ compiler. It reads what a kernel launched by name can declare (scalars, `Tile`, `View`,
pointers) and refuses the rest with the line and the cure: a wrong guess here would pass wrong bytes to the
GPU. For the same reason an alias (`using`, `typedef`, a macro without arguments) is followed only where it
can mean one thing: at file scope, outside `#if`, and defined once. `#if 0` is honoured; any other condition
is taken as unknown.

Element and scalar types are NumPy dtype names (`float32`, `int64`, `bool`), with `float16` for `half` and
`bfloat16` for `nv_bfloat16`. `long` has 64 bits and `char` is signed: CUDA on 64-bit Linux.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, final

from dagpu.errors import KernelArgumentError

Abi: TypeAlias = Literal["views", "pointers"]
ScalarKind: TypeAlias = Literal["int", "float", "bool"]


@final
@dataclass(frozen=True, slots=True)
class CudaParam:
    """One parameter as CUDA declares it.

    `name` is empty where the source gives none. `const` says that the elements may not be written, and is
    False for a scalar, whose own `const` is no business of the caller. `rank` is None unless the form is
    `tile` or `view`. `line` counts from 1 in the source.
    """

    name: str
    form: Literal["tile", "view", "pointer", "scalar"]
    ctype: str
    const: bool
    rank: int | None
    line: int


@final
@dataclass(frozen=True, slots=True)
class CudaSignature:
    """A kernel's declaration; `line` is where its name stands.

    `template` is False in all that `parse_cuda_signature` returns, since it refuses templates.
    """

    name: str
    params: tuple[CudaParam, ...]
    line: int
    template: bool


@final
@dataclass(frozen=True, slots=True)
class PyParam:
    """One parameter as Python declares it; `dtype` is None for a scalar or a generic element type."""

    name: str
    form: Literal["in", "out", "scalar"]
    dtype: str | None
    scalar: ScalarKind | None


# ---- C types ------------------------------------------------------------------------------
# The first spelling of a dtype is the one that messages use.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float",), "float64": ("double",), "bool": ("bool",),
    "float16": ("__half", "half"), "bfloat16": ("__nv_bfloat16", "nv_bfloat16"),
    "int8": ("signed char", "char", "int8_t"), "uint8": ("unsigned char", "uint8_t"),
    "int16": ("short", "int16_t"), "uint16": ("unsigned short", "uint16_t", "ushort"),
    "int32": ("int", "signed", "int32_t"), "uint32": ("unsigned int", "uint32_t", "uint"),
    "int64": ("long long", "long", "int64_t", "ptrdiff_t", "ssize_t", "intptr_t"),
    "uint64": ("unsigned long long", "unsigned long", "uint64_t", "size_t", "uintptr_t", "ulong"),
}  # fmt: skip
_KEYWORDS = frozenset(("bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "void", "auto"))
_IGNORED = frozenset(
    ("volatile", "restrict", "__restrict", "__restrict__", "__grid_constant__", "register", "typename")
)
_TYPE_CURE = (
    "Write the C type out (float, double, half, nv_bfloat16, bool, an integer type such as int, size_t or "
    "int32_t); an alias is followed if it is defined once, at file scope, outside #if, and is no pointer"
)
_WORD = re.compile(r"[^\W\d][\w$]*")


def _type_key(words: Sequence[str]) -> str:
    """One key for all orders of the words, with an `int` or `signed` that adds nothing left out."""
    key = sorted(words)
    if len(key) > 1 and "int" in key:
        key.remove("int")
    if len(key) > 1 and "signed" in key and "char" not in key:
        key.remove("signed")
    return " ".join(key)


_DTYPES = {_type_key(c.split()): dtype for dtype, spellings in _SPELLINGS.items() for c in spellings}


def _dtype_of(words: Sequence[str]) -> str | None:
    """The dtype of `words` (no `const`), or None; sees through `std::`, `cuda::std::` and a leading `::`."""
    if "::" in words:
        scope, _, last = "".join(words).rpartition("::")
        return _DTYPES.get(last) if scope.removeprefix("::") in ("", "std", "cuda::std") else None
    return _DTYPES.get(_type_key(words))


# ---- tokens -------------------------------------------------------------------------------
class _Token(NamedTuple):
    text: str
    line: int
    guarded: bool  # inside an #if whose condition is not known


_TEXT = r"""//(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \\\r?\n"""
_LEXEME = re.compile(
    rf"""(?P<skip> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{{0,16}})\(.*?\)(?P=mark)"
                | (?:u8|[uUL])?(?:{_TEXT}) | \s+ )
       | (?P<directive> \#(?: {_TEXT} | [^\n])* )  # `#` stands nowhere else in C++
       | (?P<number> \.?\d(?:[eEpP][+-] | '?[\w.])* )
       | (?P<word> {_WORD.pattern} )
       | (?P<punct> :: | \.\.\. | . )""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*(.*)", re.DOTALL)
_DEFINE = re.compile(r"([^\W\d]\w*)(\()?(.*)", re.DOTALL)
# One branch of an #if. Done: dead, and so is every branch that follows.
_Branch: TypeAlias = Literal["live", "dead", "maybe", "done"]
_NEXT_BRANCH: Mapping[_Branch, _Branch] = {"live": "done", "dead": "live", "maybe": "maybe", "done": "done"}
_CONDITIONS: Mapping[str, _Branch] = {"0": "dead", "false": "dead", "1": "live", "true": "live"}
_Aliases: TypeAlias = dict[str, tuple[str, ...] | None]  # None: known, but not to be followed


def _code(text: str) -> tuple[str, ...]:
    return tuple(m.group() for m in _LEXEME.finditer(text) if m.lastgroup in ("number", "word", "punct"))


def _add_alias(aliases: _Aliases, name: str, body: tuple[str, ...], sure: bool) -> None:
    # Pointers, references and arrays stay out: `const P x` is not what pasting P's text would give.
    usable = sure and aliases.get(name, body) == body and not any(text in "*&()[]{}" for text in body)
    aliases[name] = body if usable else None


def _tokens(source: str) -> tuple[list[_Token], _Aliases]:
    """The code without comments, literals, directives and dead branches, and the macros that stand for it.

    An unknown condition leaves a `#` token where a branch begins or ends, so that one within a declaration
    is noticed.
    """
    tokens: list[_Token] = []
    macros: _Aliases = {}
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
                _add_alias(macros, macro[1], _code(macro[3]), sure)
            elif _conditional(branches, word, " ".join(_code(rest))):
                tokens.append(_Token("#", line, True))
        elif match.lastgroup != "skip" and not dead:
            tokens.append(_Token(text, line, "maybe" in branches))
        line += text.count("\n")
    return tokens, macros


def _conditional(branches: list[_Branch], word: str, condition: str) -> bool:
    """Opens, turns or closes a branch; True if one begins or ends whose condition is not known."""
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


def _past_bracket(tokens: Sequence[_Token], start: int) -> int | None:
    """The index after the bracket that closes `tokens[start]`, or None; `<` counts only within `<`."""
    opened = [tokens[start].text]
    for i in range(start + 1, len(tokens)):
        text = tokens[i].text
        if text in ("(", "[", "{") or (text == "<" and opened[-1] == "<"):
            opened.append(text)
        elif text in (")", "]", "}"):
            while opened and opened[-1] == "<":  # it was a comparison
                opened.pop()
            if opened:
                opened.pop()
        elif text == ">" and opened[-1] == "<":
            opened.pop()
        if not opened:
            return i + 1
    return None


# ---- declarations ---------------------------------------------------------------------------
class _Declaration(NamedTuple):
    name: str
    line: int
    template: bool
    inside: Sequence[_Token] | None  # what stands between the parentheses; None if they are never closed
    has_body: bool


def _scan(tokens: Sequence[_Token], aliases: _Aliases) -> list[_Declaration]:
    """All `__global__` functions in order; adds file-scope `using` and `typedef` names to `aliases`."""
    declarations: list[_Declaration] = []
    template, depth, i = False, 0, 0
    while i < len(tokens):
        text = tokens[i].text
        if text == "template":
            template = True
            if i + 1 < len(tokens) and tokens[i + 1].text == "<":
                i = (_past_bracket(tokens, i + 1) or len(tokens)) - 1
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


def _read_alias(tokens: Sequence[_Token], start: int, aliases: _Aliases, *, sure: bool) -> None:
    end = next((i for i in range(start, len(tokens)) if tokens[i].text in (";", "{")), len(tokens))
    body = tuple(token.text for token in tokens[start + 1 : end])
    if tokens[start].text == "typedef" and len(body) > 1:
        _add_alias(aliases, body[-1], body[:-1], sure)
    elif tokens[start].text == "using" and len(body) > 2 and body[1] == "=":
        _add_alias(aliases, body[0], body[2:], sure)


def _declaration(tokens: Sequence[_Token], i: int, template: bool) -> tuple[_Declaration | None, int]:
    """Reads on from `__global__`, and says where it stopped.

    The function's name is the last word before the body that has parentheses and is no attribute: whatever
    came before it, `__launch_bounds__(256)` or a macro of the user's own, was one.
    """
    found: _Declaration | None = None
    while i < len(tokens) and tokens[i].text not in (";", "{", "}", "__global__"):
        token, after = tokens[i], i + 1
        if _WORD.fullmatch(token.text) and after < len(tokens):
            special = tokens[after].text == "<"
            if special:
                after = _past_bracket(tokens, after) or len(tokens)
            if after < len(tokens) and tokens[after].text == "(":
                end = _past_bracket(tokens, after)
                attribute = token.text.startswith("__") and token.text.endswith("__")
                if not attribute and token.text not in ("noexcept", "requires", "decltype", "alignas"):
                    inside = None if end is None else tokens[after + 1 : end - 1]
                    found = _Declaration(token.text, token.line, template or special, inside, False)
                after = end or after + 1
        elif token.text == "[":
            after = _past_bracket(tokens, i) or after
        i = after
    if found and i < len(tokens) and tokens[i].text == "{":
        found = found._replace(has_body=True)
    return found, i


def _split(tokens: Sequence[_Token]) -> list[Sequence[_Token]]:
    """Cuts at the commas that stand outside all brackets."""
    parts: list[Sequence[_Token]] = []
    depth = begin = 0
    for i, token in enumerate(tokens):
        depth += (token.text in ("(", "[", "{", "<")) - (token.text in (")", "]", "}", ">"))
        if token.text == "," and depth == 0:
            parts.append(tokens[begin:i])
            begin = i + 1
    return [*parts, tokens[begin:]]


# ---- parameters -------------------------------------------------------------------------------
def _refuse(kernel: str, line: int, what: str, cure: str) -> NoReturn:
    raise KernelArgumentError(f"kernel {kernel!r}, CUDA source line {line}: {what}. {cure}.")


def _show(texts: Sequence[str]) -> str:
    """Tokens as a person would write them."""
    return re.sub(r" ?(::|[<\[(]) ?| (?=[>,\]*&)])", r"\1", " ".join(texts))


def _expand(texts: Sequence[str], aliases: _Aliases, seen: frozenset[str] = frozenset()) -> list[str]:
    """`texts` with aliases pasted in; a name is not followed again within its own expansion."""
    result: list[str] = []
    for i, text in enumerate(texts):
        body = None if text in seen or (i and texts[i - 1] == "::") else aliases.get(text)
        result += [text] if body is None else _expand(body, aliases, seen | {text})
    return result


def _without_attributes(texts: list[str]) -> list[str]:
    """`texts` without `[[maybe_unused]]` and its like."""
    for start in range(len(texts) - 1):
        if texts[start : start + 2] == ["[", "["] and "]" in texts:
            return texts[:start] + _without_attributes(texts[texts.index("]") + 2 :])
    return texts


def _take_name(texts: list[str]) -> str:
    """Removes and returns the last word if it is the parameter's name: a type stands before it."""
    qualifiers = _IGNORED | {"const"}
    typed = len(texts) > 1 and texts[-2] != "::" and not qualifiers.issuperset(texts[:-1])
    named = typed and _WORD.fullmatch(texts[-1]) and texts[-1] not in _KEYWORDS | qualifiers
    return texts.pop() if named else ""


@final
@dataclass(frozen=True, slots=True)
class _ParamReader:
    """Reads the parameters of one declaration."""

    kernel: str
    abi: Abi
    aliases: _Aliases
    declared: int  # the line of the kernel's name

    def params(self, inside: Sequence[_Token]) -> tuple[CudaParam, ...]:
        parts = _split(inside)
        if len(parts) == 1 and [token.text for token in parts[0]] in ([], ["void"]):
            return ()
        return tuple(self.param(part, position) for position, part in enumerate(parts, start=1))

    def param(self, tokens: Sequence[_Token], position: int) -> CudaParam:
        line = tokens[0].line if tokens else self.declared
        texts = [token.text for token in tokens]
        if "#" in texts:
            what = f"parameter {position} is under a preprocessor condition, which is not known here"
            _refuse(self.kernel, line, what, "Take the condition out of the parameter list")
        texts = _without_attributes(texts[: texts.index("=")] if "=" in texts else texts)
        what = f"parameter {position} is '{_show(texts)}'"
        if "&" in texts:
            _refuse(self.kernel, line, f"{what}, a reference", "Kernels take parameters by value: drop the '&'")
        bounds = texts[texts.index("[") :] if "[" in texts else []
        texts = texts[: len(texts) - len(bounds)]
        name = _take_name(texts)
        texts = [text for text in _expand(texts, self.aliases) if text not in _IGNORED]
        unsure = next((text for text in texts if text in self.aliases and self.aliases[text] is None), None)
        if unsure is not None:
            _refuse(self.kernel, line, f"{what}, and the alias {unsure!r} cannot be followed", _TYPE_CURE)
        stars = texts.count("*") + bounds.count("[")
        if "<" in texts:
            return self.tile_or_view(texts, name, line, what, stars)
        return self.plain(texts, name, line, what, stars)

    def plain(self, texts: list[str], name: str, line: int, what: str, stars: int) -> CudaParam:
        """A scalar or a pointer."""
        base = texts[: texts.index("*")] if "*" in texts else texts
        dtype = _dtype_of([text for text in base if text != "const"])
        if dtype is None or not {"*", "const"}.issuperset(texts[len(base) :]):
            hints = {"auto": ", and 'auto' makes it a template", "void": ", which says no element type"}
            only = " ".join(text for text in base if text != "const")
            hint = hints.get(only, ", a type that cannot be read here")
            _refuse(self.kernel, line, f"{what}{hint}", _TYPE_CURE)
        if stars > 1:
            cure = "Pass one flat array and its extents"
            _refuse(self.kernel, line, f"{what}, a pointer to pointers or a nested array", cure)
        if stars and self.abi == "views":
            c = _SPELLINGS[dtype][0]
            cure = f"Declare Tile<{c}, N> (output) or View<const {c}, N> (input), or use abi='pointers'"
            _refuse(self.kernel, line, f"{what}, a pointer, in a kernel that takes tiles and views", cure)
        if stars:
            return CudaParam(name, "pointer", dtype, "const" in base, None, line)
        return CudaParam(name, "scalar", dtype, False, None, line)

    def tile_or_view(self, texts: list[str], name: str, line: int, what: str, stars: int) -> CudaParam:
        """`Tile<T, N>` or `View<const T, N>`."""
        start = texts.index("<")
        end = len(texts) - texts[::-1].index(">") if ">" in texts else len(texts)
        outer = "".join(text for text in texts[:start] if text != "const")
        outer = outer.removeprefix("::").removeprefix("dagpu::")
        if outer not in ("Tile", "View") or not {"*", "const"}.issuperset(texts[end:]):
            cure = "Take Tile<T, N>, View<const T, N> or scalars, or with abi='pointers' plain pointers"
            _refuse(self.kernel, line, f"{what}, a type that cannot be read here", cure)
        if stars:
            _refuse(self.kernel, line, f"{what}, a pointer", f"Pass the {outer} by value: drop the '*'")
        args = _split([_Token(text, line, False) for text in texts[start + 1 : end - 1]])
        element, *ranks = ([token.text for token in arg] for arg in args)
        rank = re.fullmatch(r"([1-9]\d*)[uUlL]*", "".join(ranks[0])) if len(ranks) == 1 else None
        if rank is None:
            cure = f"Give the element type and the rank as a number of 1 or more, as in {outer}<float, 2>"
            _refuse(self.kernel, line, f"{what}, whose rank cannot be read", cure)
        dtype = _dtype_of([text for text in element if text != "const"])
        if dtype is None:
            _refuse(self.kernel, line, f"{what}, whose element type cannot be read", _TYPE_CURE)
        if self.abi == "pointers":
            c = _SPELLINGS[dtype][0]
            cure = f"Declare {c}* (output) or const {c}* (input), or leave abi='pointers' out"
            _refuse(self.kernel, line, f"{what}, a {outer}, in a kernel with abi='pointers'", cure)
        form: Literal["tile", "view"] = "tile" if outer == "Tile" else "view"
        return CudaParam(name, form, dtype, "const" in element, int(rank[1]), line)


# ---- the declaration asked for ------------------------------------------------------------------
def parse_cuda_signature(source: str, name: str, *, abi: Abi) -> CudaSignature:
    """The signature of the kernel `name` in `source`, from its definition or else its first declaration.

    Raises:
        KernelArgumentError: there is no such kernel, it is a template or overloaded, or a parameter is none
            that can be passed under `abi`.
    """
    tokens, aliases = _tokens(source)
    everything = _scan(tokens, aliases)
    declarations = [declaration for declaration in everything if declaration.name == name]
    if not declarations:
        raise KernelArgumentError(_missing(name, tokens, everything))
    signatures: list[CudaSignature] = []
    for _, line, template, inside, _ in declarations:
        if template:
            cure = "Write the types out, or call the template from a kernel that is none"
            _refuse(name, line, "it is a template, and a kernel that is launched by name cannot be one", cure)
        if inside is None:
            _refuse(name, line, "its parameter list is never closed", "Add the missing ')'")
        params = _ParamReader(name, abi, aliases, line).params(inside)
        signatures.append(CudaSignature(name, params, line, template=False))
    first = signatures[0]
    for other in signatures[1:]:
        if _abi_of(other) != _abi_of(first):
            what = f"it is declared with other parameters than on line {first.line}"
            cure = "A kernel is launched by name: give each overload a name of its own"
            _refuse(name, other.line, what, cure)
    return next((s for s, d in zip(signatures, declarations, strict=True) if d.has_body), first)


def _abi_of(signature: CudaSignature) -> list[tuple[object, ...]]:
    return [(param.form, param.ctype, param.const, param.rank) for param in signature.params]


def _missing(name: str, tokens: Sequence[_Token], declarations: Sequence[_Declaration]) -> str:
    there = ", ".join(f"{d.name!r} (line {d.line})" for d in declarations) or "none"
    calls = [token.line for token, after in pairwise(tokens) if (token.text, after.text) == (name, "(")]
    if calls:
        cure = f"Line {calls[0]} has '{name}(' with no __global__ to be seen before it: write it there"
    else:
        cure = "Give the Python function and the CUDA kernel one name; macros with arguments are not expanded"
    found = f"its CUDA source has no '__global__ void {name}(...)'; its __global__ functions: {there}"
    return f"kernel {name!r}: {found}. {cure}."


# ---- scalar arguments ---------------------------------------------------------------------------
_INT_RANGES: Mapping[str, tuple[int, int]] = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u") for bits in (8, 16, 32, 64)
}  # fmt: skip
# The least magnitude that rounds to infinity (the largest number and half a unit in its last place), and the
# largest number as messages show it. A float64 holds every Python float.
_FLOAT_LIMITS: Mapping[str, tuple[float, str]] = {
    "float16": (65520.0, "65504"),
    "bfloat16": (2.0**128 - 2.0**119, "3.3895e38"),
    "float32": (2.0**128 - 2.0**103, "3.4028e38"),
    "float64": (float("inf"), "1.7977e308"),
}


def _kind(dtype: str) -> ScalarKind:
    return "int" if dtype in _INT_RANGES else "bool" if dtype == "bool" else "float"


def _plain(value: object) -> object:
    """A NumPy scalar as the Python number it holds; anything else as it is. Does not import NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    scalar: Any = value
    if scalar.dtype.kind in "biu":
        return bool(scalar) if scalar.dtype.kind == "b" else int(scalar)
    # bfloat16 is not NumPy's own: its kind is "V", which structured scalars have too.
    return float(scalar) if scalar.dtype.kind == "f" or scalar.dtype.name == "bfloat16" else value


def check_scalar(value: object, param: CudaParam, *, kernel: str) -> int | float | bool:
    """`value` as the plain number that is passed for `param`.

    An integer parameter takes an int in its range, a floating one a float or an int that does not overflow
    it (infinities and NaN pass), a bool one a bool. NumPy scalars count by value.

    Raises:
        KernelArgumentError: anything else.
    """
    plain = _plain(value)
    kind = _kind(param.ctype)
    if param.form != "scalar":
        _refuse_scalar(value, param, kernel, "pass a tensor")
    if isinstance(plain, bool) or kind == "bool":
        if isinstance(plain, bool) and kind == "bool":
            return plain
        _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")
    if kind == "int" and isinstance(plain, int):
        low, high = _INT_RANGES[param.ctype]
        if low <= plain <= high:
            return int(plain)  # without the subclass: an IntEnum is passed as a number
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    if kind == "float" and isinstance(plain, int | float):
        if _fits(plain, param.ctype):
            return float(plain)
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    return _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")


def _fits(number: float, dtype: str) -> bool:
    """Whether a number stays finite as `dtype`, or is not finite to begin with."""
    try:
        return abs(float(number)) < _FLOAT_LIMITS[dtype][0] or not isfinite(number)
    except OverflowError:  # an int beyond every float
        return False


def _refuse_scalar(value: object, param: CudaParam, kernel: str, cure: str) -> NoReturn:
    plain = _plain(value)
    shown = ""  # the value is shown only where it is a number: an array could fill the screen
    if isinstance(plain, int) and plain.bit_length() > 128:  # Python refuses to print very long ones
        shown = f" of {plain.bit_length()} bits"
    elif isinstance(plain, int | float):
        shown = f" {plain!r}"
    if param.form != "scalar":
        wanted = "device data"
    elif param.ctype == "bool":
        wanted = "a bool"
    elif param.ctype in _INT_RANGES:
        low, high = _INT_RANGES[param.ctype]
        wanted = f"an int from {low} to {high}"
    else:
        largest = _FLOAT_LIMITS[param.ctype][1]
        wanted = f"a number from -{largest} to {largest}"
    raise KernelArgumentError(
        f"kernel {kernel!r}: argument {param.name or '(unnamed)'!r} is {type(value).__name__}{shown}; its "
        f"CUDA parameter '{_c_text(param)}' (CUDA source line {param.line}) takes {wanted}. Cure: {cure}."
    )


# ---- the two signatures against each other ------------------------------------------------------
def check_signature(sig: CudaSignature, python_params: Sequence[PyParam], *, kernel: str, where: str) -> None:
    """Holds a kernel's CUDA signature against its Python one, declared at `where` (a file and line).

    Held are the number of parameters, their order (a name that both sides use must stand in one place),
    forms, element types and `const`. Names may differ. A generic element type (`dtype=None`) takes what CUDA
    declares.

    Raises:
        KernelArgumentError: one message for all that differs, with both sides' lines.
    """
    problems: list[str] = []
    if len(sig.params) != len(python_params):
        counts = f"{len(python_params)} parameters in Python, {len(sig.params)} in CUDA"
        problems.append(f"{counts} (line {sig.line}): {_surplus(sig, python_params)}")
    names = [p.name for p in python_params]
    for position, (p, c) in enumerate(zip(python_params, sig.params, strict=False), start=1):
        found = list(_differences(p, c))
        if c.name != p.name and c.name in names:
            found.append(f"the Python parameter {c.name!r} is number {names.index(c.name) + 1}")
        if found:
            sides = f"parameter {position}: Python '{_python_text(p)}', CUDA '{_c_text(c)}' (line {c.line})"
            problems.append(f"{sides}: {'; '.join(found)}. Declare '{_wanted(p, c)}'")
    if problems:
        sides = f"its Python signature ({where}) and its CUDA signature (CUDA source line {sig.line}) differ"
        raise KernelArgumentError("\n  - ".join([f"kernel {kernel!r}: {sides}:", *problems]))


def _surplus(sig: CudaSignature, python_params: Sequence[PyParam]) -> str:
    common = min(len(sig.params), len(python_params))
    texts = [_python_text(p) for p in python_params[common:]] or [_c_text(c) for c in sig.params[common:]]
    return f"nothing stands against {', '.join(repr(text) for text in texts)}"


def _differences(p: PyParam, c: CudaParam) -> Iterator[str]:
    if (p.form == "scalar") != (c.form == "scalar"):
        yield "a scalar against an array"
        return
    if p.form == "scalar":
        if p.scalar is not None and p.scalar != _kind(c.ctype):
            yield f"a Python {p.scalar} against {_SPELLINGS[c.ctype][0]}"
    elif c.form != "pointer" and c.form != ("tile" if p.form == "out" else "view"):
        yield "an output is a Tile" if p.form == "out" else "an input is a View"
    elif c.const != (p.form == "in"):
        yield "an input is const" if p.form == "in" else "an output is not const"
    if p.dtype is not None and p.dtype != c.ctype:
        yield f"{p.dtype} against {c.ctype}"


def _python_text(p: PyParam) -> str:
    if p.form == "scalar":
        return f"{p.name}: {p.dtype or p.scalar or 'scalar'}"
    return f"{p.name}: {'In' if p.form == 'in' else 'Out'}[{p.dtype or 'D'}]"


def _c_text(c: CudaParam) -> str:
    element = ("const " if c.const else "") + _SPELLINGS[c.ctype][0]
    if c.form in ("tile", "view"):
        element = f"{'Tile' if c.form == 'tile' else 'View'}<{element}, {c.rank}>"
    return f"{element}{'*' if c.form == 'pointer' else ''} {c.name}".rstrip()


def _wanted(p: PyParam, c: CudaParam) -> str:
    """What CUDA should declare for `p`, in the manner of `c`."""
    fitting = (p.form == "scalar") == (c.form == "scalar") and p.scalar in (None, _kind(c.ctype))
    element = _SPELLINGS[c.ctype][0] if fitting else p.scalar or "T"
    if p.dtype is not None:
        element = _SPELLINGS.get(p.dtype, (p.dtype,))[0]
    if p.form == "scalar":
        return f"{element} {p.name}"
    const = "const " if p.form == "in" else ""
    if c.form == "pointer":
        return f"{const}{element}* {p.name}"
    return f"{'Tile' if p.form == 'out' else 'View'}<{const}{element}, {c.rank or 'N'}> {p.name}"
