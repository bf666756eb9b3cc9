"""What the launches of a kernel share: the variables of its module, and its grid. Read from the text.

A module is the compiled text of one kernel. Its variables (`__device__`, `__managed__`, `static` in a function) live
as long as it does, so two launches that run at the same time use one counter. A `__constant__` variable is what its
initialiser says, or what a launch sets it to: a parameter in Python that has the name of the variable is its contents.

Macros are expanded and headers are read. Names are compared as words. What a kernel *reaches* are the functions, types
and variables that its text names, and what these name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple, final

from dagpu.kernels.cuda_lexer import (
    Token,
    join_tokens,
    past_bracket,
    place_of,
    scan_declarations,
    split_at_commas,
)
from dagpu.kernels.cuda_names import Names
from dagpu.kernels.cuda_parameters import CudaParam, refuse
from dagpu.kernels.cuda_types import TypeReader
from dagpu.kernels.preprocessing import preprocess, preprocess_decided

_SPACES = frozenset(("__device__", "__constant__", "__managed__"))
_FUNCTION_SPACES = frozenset(("__global__", "__host__"))
_IN_DEVICE_SPACE = frozenset(("-default-device", "--device-as-default-execution-space"))
"""Options by which variables without a space are in the device's memory."""
_NO_VARIABLES = frozenset(("using", "typedef", "friend", "static_assert", "namespace", "concept", "asm"))
_CLOSED = re.compile(r"__\w+__|_Pragma|alignas|decltype|noexcept")  # words with parentheses that are no functions
_LITERAL = re.compile(r"[\d.'\"+!~-]|(nullptr|true|false)$")  # no parameter of a function begins so
_GRID_WORDS = frozenset(("grid_group", "this_grid", "multi_grid_group", "this_multi_grid"))
_GRID_WAITS = frozenset(("sync", "barrier_arrive", "barrier_wait"))


@final
class ModuleVariable(NamedTuple):
    """A variable of a module. `line` counts from 1; `sure` is false inside an `#if` with an unknown condition."""

    name: str
    line: int
    space: str
    is_const: bool
    is_array: bool
    is_set: bool
    """True if it has an initialiser."""
    sure: bool
    is_template: bool = False
    file: str = ""
    """The header that declares it; empty for the source itself."""

    @property
    def place(self) -> str:
        return f"{self.file or 'CUDA source'} line {self.line}"


@final
class ModuleUse(NamedTuple):
    """What a kernel shares with other launches, and needs of its launch."""

    changed: tuple[ModuleVariable, ...]
    """The variables that it reaches and that the text may change: launches at the same time would share them."""
    unset: tuple[ModuleVariable, ...]
    """The variables that it reaches and that nothing sets: they are zero."""
    others: tuple[str, ...]
    """The other kernels of the text that reach one of `changed`. Each has a module, and variables, of its own."""
    waits_for_grid: bool
    """True if its blocks wait for all others, which takes a cooperative launch."""
    dynamic_shared: str = ""
    """The declaration of the dynamic shared memory that it reaches; empty if it reaches none."""
    constants: tuple[str, ...] = ()
    """The `__constant__` variables that it reaches."""
    unread: str = ""
    """Why it may share others: what its text does that hides them. Empty if the text has been read through."""


def read_module_use(source: str, kernel: str, folder: Path | None = None, options: Sequence[str] = ()) -> ModuleUse:
    """Return what a kernel of this text shares with other launches. Its headers are searched in `folder`, and in those
    that the compiler's options name."""
    tokens, unread = preprocess(source, folder, options)
    items = list(_items(tokens))
    otherwise = "__device__" if _IN_DEVICE_SPACE & set(options) else ""
    variables = {v.name: v for item in items for v in _variables(item, otherwise)}
    bodies: dict[str, list[list[str]]] = {name: [] for name in variables}
    for item in items:
        names, words = _declared_names(item), [token.text for token in item]
        if any(name in variables for name in names):  # of a variable its initialiser alone names others
            words = words[min([words.index(each) for each in ("=", "{") if each in words], default=len(words)) :]
        for name in names:
            bodies.setdefault(name, []).append(words)
    reached = _reached(kernel, bodies)
    texts: list[list[str]] = [body for name in reached for body in bodies[name]]
    for number, static in enumerate(_static_locals(texts)):
        variables[f"{static.name} {number}"] = static
    found = [v for key, v in variables.items() if key in reached or " " in key]
    everything = [body for each in bodies.values() for body in each]
    open_ = [v for v in found if v.space != "__constant__" and not v.is_const]
    written = {v.name for v in open_ if v.space not in _SPACES or any(_may_change(v, text) for text in everything)}
    changed = tuple([v for v in open_ if v.name in written])
    # A constant that has no initialiser has a class with a constructor.
    unset = tuple([v for v in found if not v.is_set and v.sure and not v.is_const and v.name not in written])
    shared = {v.name for v in changed if v.space in _SPACES}
    kernels = [d.name for d in scan_declarations(tokens, {}) if d.has_body and d.name != kernel]
    others = tuple([other for other in dict.fromkeys(kernels) if shared & _reached(other, bodies)])
    constants = tuple([v.name for v in found if v.space == "__constant__"])
    return ModuleUse(changed, unset, others, _waits_for_grid(texts), _dynamic_shared(texts), constants, unread)


# ---- the items of a text
def _items(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the declarations and definitions outside of functions and types, each with its body. Namespaces and
    linkage blocks are opened."""
    start = i = 0
    while i < len(tokens):
        text = tokens[i].text
        if text in ("(", "["):
            i = past_bracket(tokens, i) or len(tokens)
            continue
        if text == "{":
            head = [token.text for token in tokens[start:i]]
            if "namespace" in head or head == ["extern"]:
                i = start = i + 1
                continue
            i = past_bracket(tokens, i) or len(tokens)
            if _is_function(tokens[start:i]):
                yield list(tokens[start:i])
                start = i
            continue
        i += 1
        if text in (";", "}"):
            if i - 1 > start:
                yield list(tokens[start : i - 1])
            start = i
    if start < len(tokens):
        yield list(tokens[start:])


def _plain(item: Sequence[Token]) -> list[Token]:
    """Return an item without the insides of its brackets, and without attributes and the arguments of templates. A
    variable that is initialised in parentheses, `n(0)`, is given as `n{}`, and a pointer `(*f)(int)` as `*f`."""
    found: list[Token] = []
    i = 0
    while i < len(item):
        token = item[i]
        texts = [each.text for each in item[i : i + 2]]
        if texts == ["[", "["]:
            i = past_bracket(item, i) or len(item)
            continue
        if texts == ["(", "*"] and (end := past_bracket(item, i)) and "(" not in [t.text for t in item[i + 1 : end]]:
            found += _plain(item[i + 1 : end - 1])
            called = end < len(item) and item[end].text == "("
            i = (past_bracket(item, end) or len(item)) if called else end
            continue
        named = bool(found) and found[-1].text.isidentifier() and not _CLOSED.fullmatch(found[-1].text)
        if texts[:1] == ["("] and named and _LITERAL.match(texts[-1]):
            found += [token._replace(text="{"), token._replace(text="}")]
            i = past_bracket(item, i) or len(item)
            continue
        opens = token.text in ("(", "[", "{") or (token.text == "<" and bool(found) and found[-1].text != "operator")
        after = past_bracket(item, i) if opens else None
        if after is not None and token.text == "(" and found and _CLOSED.fullmatch(found[-1].text):
            found.pop()
        elif after is None or token.text != "<":
            found += [token] if after is None else [token, item[after - 1]]
        i = i + 1 if after is None else after
    return found


def _is_function(item: Sequence[Token]) -> bool:
    """Return true for the declaration of a function, and false for that of a variable or a type."""
    for token in _plain(item):
        if token.text in ("(", "operator"):
            return True
        if token.text in ("=", "{", "["):
            return False
    return False


def _declared_names(item: Sequence[Token]) -> list[str]:
    """Return the names that an item declares."""
    plain = _plain(item)
    texts = [token.text for token in plain]
    if _is_function(item):
        head = texts[: texts.index("{")] if "{" in texts else texts
        at = max([i for i, text in enumerate(head) if text == "("], default=0)
        return head[at - 1 : at] if at else []
    for kind in ("struct", "class", "union", "enum", "using"):
        if kind in texts:
            after = texts[texts.index(kind) + 1 :]
            return [text for text in after if text.isidentifier()][:1] + [
                text for text in texts[-1:] if text.isidentifier()
            ]
    return [name for name, _ in _declarators(plain)]


def _declarators(plain: Sequence[Token]) -> list[tuple[str, Sequence[Token]]]:
    """Return the names of the variables that a declaration declares, each with its tokens."""
    found: list[tuple[str, Sequence[Token]]] = []
    for part in split_at_commas(plain):
        ends = [i for i, token in enumerate(part) if token.text in ("=", "[", "{", "(")]
        words = [token.text for token in part[: min(ends, default=len(part))] if token.text.isidentifier()]
        names = [word for word in words if not _CLOSED.fullmatch(word)]  # a space may stand behind the name
        if names:
            found.append((names[-1], part))
    return found


def _variables(item: Sequence[Token], otherwise: str) -> Iterator[ModuleVariable]:
    """Yield the variables in the device's memory that an item declares; `otherwise` is the space of one without any."""
    plain = _plain(item)
    words = {token.text for token in plain}
    space = next((each for each in ("__constant__", "__managed__", "__device__") if each in words), otherwise)
    if not space or "__shared__" in words or _NO_VARIABLES & words or _is_function(item):
        return
    declarators = _declarators(plain)
    if not declarators:
        return
    first = [token.text for token in declarators[0][1]]
    of_type = first[: first.index(declarators[0][0])]
    for name, part in declarators:
        texts = [token.text for token in part]
        before = texts[: texts.index(name)]
        pointer = "*" in before
        own = before[len(before) - before[::-1].index("*") :] if pointer else [*of_type, *before]
        yield ModuleVariable(
            name,
            part[0].line,
            space,
            is_const="const" in own or "constexpr" in words,
            is_array="[" in texts,
            is_set="=" in texts or "{" in texts,
            sure=not any(token.guarded for token in item) and "extern" not in words,
            is_template="template" in words,
            file=part[0].file,
        )


def _static_locals(bodies: Sequence[Sequence[str]]) -> Iterator[ModuleVariable]:
    """Yield the variables of functions that keep their values."""
    for texts in bodies:
        for at, text in enumerate(texts):
            inside = "{" in texts[:at]
            if text != "static" or not inside:
                continue
            end = next((i for i in range(at, len(texts)) if texts[i] in (";", "=", "(", "{", "[")), len(texts))
            words = texts[at:end]
            closed = end < len(texts) and texts[end] == "("
            if closed or {"__shared__", "const", "constexpr"} & set(words) or len(words) < 3:
                continue
            yield ModuleVariable(words[-1], 0, "static in a function", False, False, True, True)


def _dynamic_shared(bodies: Sequence[Sequence[str]]) -> str:
    """Return the first declaration `extern __shared__ float s[]` in these texts; empty if there is none."""
    for texts in bodies:
        for at, text in enumerate(texts):
            if text == "extern":
                end = next((i for i in range(at, len(texts)) if texts[i] in (";", "=", "{", "}")), len(texts))
                if "__shared__" in texts[at:end]:
                    return join_tokens(texts[at:end])
    return ""


# ---- what a kernel reaches
def _reached(kernel: str, bodies: Mapping[str, Sequence[Sequence[str]]]) -> set[str]:
    """Return the names that the text of a kernel names, and what these name, as far as the text declares them."""
    found, left = set[str](), [kernel]
    while left:
        name = left.pop()
        if name in found or name not in bodies:
            continue
        found.add(name)
        left += [text for texts in bodies[name] for text in texts]
    return found


def _may_change(variable: ModuleVariable, texts: Sequence[str]) -> bool:
    """Return true if a text may change a variable: it assigns to it or to a part, or takes its address. So it does by
    the name of an array alone, and by what may take a reference: a call that it is passed to, a method of it, an
    initialiser in braces, `auto& r = n`, and `return` in a function whose result is one."""
    head = texts[: texts.index("{")] if "{" in texts else []
    returns = bool({"&", "auto", "decltype"} & set(head[: head.index("(")] if "(" in head else head))
    for at, text in enumerate(texts):
        if text != variable.name:
            continue
        first = at
        while first > 1 and texts[first - 1] == "::":  # a::n
            first -= 2
        before, after = texts[first - 1] if first else "", at + 1
        if variable.is_template and texts[after : after + 1] == ["<"]:
            after = next((i for i in range(after, len(texts)) if texts[i] == ">"), len(texts)) + 1
        after, index = _past_parts(texts, after)
        rest = list(texts[after : after + 3])
        if rest[:1] == ["="] and rest[1:2] != ["="]:
            return True
        if len(rest) > 1 and rest[0] in "+-*/%&|^" and rest[1] == "=":
            return True
        if rest[:2] in (["+", "+"], ["-", "-"]) or rest in (["<", "<", "="], [">", ">", "="]):
            return True
        if _gives_reference(before, rest, texts[: first - 1], returns):
            return True
        if before == "&" or (before in ("+", "-") and first > 1 and texts[first - 2] == before):
            return True
        if variable.is_array and not index and before != "sizeof" and _is_used(before, rest):
            return True
    return False


def _past_parts(texts: Sequence[str], after: int) -> tuple[int, bool]:
    """Return the place behind the parts of a variable, `[i]`, `.a` and `->a`, and true if one of them is an element."""
    index = False
    while after < len(texts) and texts[after] in ("[", ".", "-"):
        if texts[after] == "[":
            index, depth = True, 0
            while after < len(texts):
                depth += (texts[after] == "[") - (texts[after] == "]")
                after += 1
                if not depth:
                    break
        elif texts[after] == "." or texts[after + 1 : after + 2] == [">"]:
            after += 2 if texts[after] == "." else 3
        else:
            break
    return after, index


def _gives_reference(before: str, rest: Sequence[str], earlier: Sequence[str], returns: bool) -> bool:
    """Return true if a variable between `before` and `rest` may be changed by a reference to it from then on."""
    passed = before in ("(", ",", "{", ":") and rest[:1] in ([","], [")"], ["}"])
    called = rest[:1] == ["("]
    return passed or called or (before == "=" and _is_reference(earlier)) or (before == "return" and returns)


def _is_reference(texts: Sequence[str]) -> bool:
    """Return true if what stands before an `=` declares a reference: `auto& r`, `int& (r)`, `auto& [a, b]`."""
    depth = 0
    for text in reversed(texts):
        depth += (text in (")", "]")) - (text in ("(", "["))
        if depth < 0 or (not depth and text in (";", "{", "}")):
            return False
        if not depth and text == "&":
            return True
    return False


def _is_used(before: str, rest: Sequence[str]) -> bool:
    """Return false for the name in a declaration: a type stands before it, and it ends there."""
    return not (before.isidentifier() and before != "return" and rest[:1] in ([";"], ["="], ["{"]))


# ---- waits for the whole grid
def _waits_for_grid(bodies: Sequence[Sequence[str]]) -> bool:
    """Return true if a kernel that reaches these texts waits for all blocks of a grid: by `sync` of an object that is
    one, or of what it passes it to."""
    syncs = any("sync" in texts for texts in bodies)
    return any(_waits_in(texts, syncs) for texts in bodies)


def _waits_in(texts: Sequence[str], syncs: bool) -> bool:
    if not _GRID_WORDS & set(texts):
        return "cudaCGSynchronizeGrid" in texts
    grids = {"this_grid", "this_multi_grid"}
    for at, text in enumerate(texts):
        if text in ("grid_group", "multi_grid_group", "auto"):
            name = next((word for word in texts[at + 1 : at + 4] if word.isidentifier() and word != "const"), "")
            end = next((i for i in range(at, len(texts)) if texts[i] in (";", "{", ")")), len(texts))
            if (
                text != "auto"
                or _GRID_WORDS & set(texts[at:end])
                or (texts[end - 2] == "=" and texts[end - 1] in grids)
            ):
                grids.add(name)
        elif text in ("this_grid", "this_multi_grid"):
            grids.add(_initialised_by(texts, at))
    for at, text in enumerate(texts):
        if text not in grids:
            continue
        rest = list(texts[at + 1 : at + 5])
        if rest[:2] == ["(", ")"]:
            rest = rest[2:]
        if rest[:1] == ["."] and rest[1:2] and rest[1] in _GRID_WAITS:
            return True
        if syncs and rest[:1] in ([")"], [","]) and texts[at - 1] in ("(", ",", ")", "::"):
            return True
    return False


def _initialised_by(texts: Sequence[str], at: int) -> str:
    """Return the name of the variable that begins with the value at a place, `Grid g = a::b()` or `Grid g{a::b()}`;
    empty if there is none."""
    while at > 1 and texts[at - 1] == "::":
        at -= 2
    declares = at > 2 and texts[at - 1] in ("=", "(", "{") and texts[at - 3].isidentifier()
    return texts[at - 2] if declares and texts[at - 3] != "return" else ""


# ---- constants that a declaration sets
_SPECIFIERS = frozenset(("static", "extern", "__constant__", "__device__"))


@final
class ConstantVariable(NamedTuple):
    """A `__constant__` variable: the parameter that takes its contents, as memory that is only read."""

    param: CudaParam
    elements: int
    """The number of its elements; 0 if the text does not tell it."""
    text: str
    """Its declaration, for messages."""


def read_constants(
    source: str, names: Sequence[str], kernel: str, folder: Path | None = None, options: Sequence[str] = ()
) -> dict[str, ConstantVariable]:
    """Return the `__constant__` variables of a text that have one of these names.

    Raises:
        KernelArgumentError: the type of one of them cannot be read, or it is a pointer.
    """
    tokens = preprocess_decided(source, folder, tuple(options)).tokens
    if not any(token.text == "__constant__" for token in tokens):
        return {}
    types = TypeReader(Names(tokens), trusts=True)
    found: dict[str, ConstantVariable] = {}
    for item in _items(tokens):
        if any(token.text == "__constant__" for token in item):
            found |= {each.param.name: each for each in _declared(item, names, kernel, types)}
    return found


def _declared(
    item: Sequence[Token], names: Sequence[str], kernel: str, types: TypeReader
) -> Iterator[ConstantVariable]:
    """Yield the variables with one of these names that a declaration declares."""
    of_type: list[str] = []
    for part in split_at_commas(item):
        texts = [token.text for token in part if token.text not in _SPECIFIERS]
        end = min([texts.index(each) for each in ("=", "{") if each in texts], default=len(texts))
        texts = [*of_type, *texts[:end]]
        spelled = types.read(texts)
        if not of_type and spelled.name in texts:
            of_type = [text for text in texts[: texts.index(spelled.name)] if text != "*"]
        if spelled.name not in names:
            continue
        base, text = spelled.base, f"__constant__ {join_tokens(texts)}"
        if spelled.stars or not base.size or spelled.rest:
            what = f"'{text}' is set by its parameter {spelled.name!r}, and its type cannot be read"
            if spelled.stars:
                what = f"'{text}' is set by its parameter {spelled.name!r}, and it holds addresses"
            refuse(kernel, place_of(part[0]), what, "Pass the contents as an input of the kernel")
        extents = [0 if extent is None else extent for extent in spelled.extents]
        record = None if base.kind == "scalar" else base
        dtype = base.dtype if record is None else ""
        param = CudaParam(spelled.name, "pointer", dtype, True, None, part[0].line, record)
        yield ConstantVariable(param, prod(extents), text)
