"""The parameters of a kernel in CUDA C++: what each of them is, and how it is passed.

The parser reads the parameters that a kernel can be passed: values of known layout, `Tile`, `View`, pointers. It
refuses all others, with the line and the cure, because a wrong guess would pass wrong bytes to the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NoReturn, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_lexer import Declaration, Token, join_tokens, past_bracket, place_of, split_at_commas
from dagpu.kernels.cuda_types import SPELLINGS, Bound, CType, Spelled, TypeReader

Abi: TypeAlias = Literal["views", "pointers"]
"""The form of tensor parameters in CUDA: `Tile` and `View`, or plain pointers."""


CudaForm: TypeAlias = Literal["scalar", "view", "tile", "pointer", "pointers"]
"""How CUDA takes a parameter; `pointers` is a pointer to pointers."""


@final
@dataclass(frozen=True, slots=True)
class CudaParam:
    """One parameter of a CUDA declaration.

    `name` is empty for an unnamed parameter. `const` is true if the elements must not be written; it is false for a
    scalar, whose `const` does not concern the caller. `rank` is None unless the form is `tile` or `view`. `line` counts
    from 1 in the source; it is 0 for a parameter without a CUDA declaration. `ctype` is the dtype of a scalar or of the
    elements; for any other type it is empty, and `record` is the type.
    """

    name: str
    form: CudaForm
    ctype: str
    const: bool
    rank: int | None
    line: int
    record: CType | None = None

    @property
    def is_tensor(self) -> bool:
        """True if it is memory of a device, false if it is a value."""
        return self.form in ("view", "tile", "pointer", "pointers")

    @property
    def element(self) -> str:
        """The type in C++, without `const`."""
        return SPELLINGS[self.ctype][0] if self.record is None else self.record.name


def c_text(c: CudaParam) -> str:
    """Return a parameter as C++ text for messages."""
    element = ("const " if c.const else "") + c.element
    return parameter_text(c.form, element, c.rank, c.name).rstrip()


_TEXTS: Mapping[str, str] = {
    "scalar": "{element} {name}",
    "pointer": "{element}* {name}",
    "pointers": "{element}** {name}",
    "view": "View<{element}, {rank}> {name}",
    "tile": "Tile<{element}, {rank}> {name}",
}


def parameter_text(form: CudaForm, element: str, rank: int | str | None, name: str) -> str:
    """Return the declaration of a parameter in C++. `element` is the C type, with `const` where it is const."""
    return _TEXTS[form].format(element=element, rank=rank, name=name)


# ---- parameters -------------------------------------------------------------------------------
_TYPE_CURE = (
    "Write the C type out (float, double, half, nv_bfloat16, bool, float4, an integer type such as int, size_t or "
    "int32_t), or define it in the text or in a header that it includes"
)


def refuse(kernel: str, place: str, what: str, cure: str) -> NoReturn:
    """Raise the error for a CUDA declaration."""
    raise KernelArgumentError(f"kernel {kernel!r}, {place}: {what}. {cure}.")


@final
@dataclass(frozen=True, slots=True)
class ParamReader:
    """A parser of the parameters of one CUDA declaration."""

    kernel: str
    abi: Abi
    types: TypeReader
    declared: Declaration
    bound: Bound

    def params(self, inside: Sequence[Token]) -> tuple[CudaParam, ...]:
        """Parse the tokens between the parentheses of the declaration."""
        parts = split_at_commas(inside)
        if len(parts) == 1 and [token.text for token in parts[0]] in ([], ["void"]):
            return ()
        return tuple(self.param(part, position) for position, part in enumerate(parts, start=1))

    def param(self, tokens: Sequence[Token], position: int) -> CudaParam:
        """Parse one parameter. `position` counts from 1."""
        place = place_of(tokens[0]) if tokens else self.declared.place
        line = tokens[0].line if tokens else self.declared.line
        texts = [token.text for token in tokens]
        if "#" in texts or (any(token.guarded for token in tokens) and not self.declared.guarded):
            what = f"parameter {position} is under a preprocessor condition, which is not known here"
            cure = "Take the condition out of the parameter list, or define what it asks for: options=('-DNAME=1',)"
            refuse(self.kernel, place, what, cure)
        texts = texts[: texts.index("=")] if "=" in texts else texts
        what = f"parameter {position} is '{join_tokens(texts)}'"
        if "..." in texts:
            cure = "Write the parameters out in a kernel of its own, which calls this one's body as a function"
            refuse(self.kernel, place, f"{what}, a type that cannot be read here: a pack of parameters", cure)
        texts = self.types.with_aliases_of(("Tile", "View"), texts, self.declared.scope)
        if any(pair in pairwise(texts) for pair in (("Tile", "<"), ("View", "<"))):
            return self.tile_or_view(texts, line, place, what)
        spelled = self.types.read(texts, self.declared.scope, self.bound)
        base, stars = spelled.base, len(spelled.stars) + bool(spelled.extents)
        if spelled.reference:
            cure = "Kernels take parameters by value: drop the '&'"
            refuse(self.kernel, place, f"{what}, a reference", cure)
        if spelled.rest:
            refuse(self.kernel, place, f"{what}, a type that cannot be read here", self.cure_of(base))
        if stars:
            return self.pointer(spelled, stars, line, place, what)
        return self.value(spelled, line, place, what)

    def value(self, spelled: Spelled, line: int, place: str, what: str) -> CudaParam:
        """Return a parameter that is passed by value."""
        base = spelled.base
        if base.kind == "scalar":
            return CudaParam(spelled.name, "scalar", base.dtype, False, None, line)
        if base.kind == "generic":
            return CudaParam(spelled.name, "scalar", "", False, None, line, base)
        if base.kind == "void" or not base.size:
            why = base.why or "it has no value"
            unknown = "" if base.name == "auto" else ", a type that cannot be read here"
            refuse(self.kernel, place, f"{what}{unknown}: {why}", self.cure_of(base))
        return CudaParam(spelled.name, "scalar", "", False, None, line, base)

    def pointer(self, spelled: Spelled, stars: int, line: int, place: str, what: str) -> CudaParam:
        """Return a parameter that is a pointer."""
        base = spelled.base
        if self.abi == "views":
            c = "T" if base.kind in ("void", "opaque") else base.name
            cure = f"Declare Tile<{c}, N> (output) or View<const {c}, N> (input), or use abi='pointers'"
            refuse(self.kernel, place, f"{what}, a pointer, in a kernel that takes tiles and views", cure)
        if stars > 2:
            cure = "Pass one flat array and its extents"
            refuse(self.kernel, place, f"{what}, a pointer to pointers to pointers", cure)
        if base.name == "auto":
            refuse(self.kernel, place, f"{what}: {base.why}", _TYPE_CURE)
        form: CudaForm = "pointer" if stars == 1 else "pointers"
        if base.kind == "scalar":
            return CudaParam(spelled.name, form, base.dtype, spelled.const, None, line)
        return CudaParam(spelled.name, form, "", spelled.const, None, line, base)

    def cure_of(self, base: CType) -> str:
        """Return the way round a type that cannot be passed by value."""
        if "definition" in base.why or "alias" in base.why:
            return _TYPE_CURE
        if base.why.startswith(("it has", "its base", "its member", "its alignment")):
            return "Pass its fields as parameters of their own, or take it by pointer"
        return _TYPE_CURE

    def tile_or_view(self, texts: list[str], line: int, place: str, what: str) -> CudaParam:
        """Parse `Tile<T, N>` or `View<const T, N>`."""
        start = texts.index("<")
        end = (past_bracket([Token(text, line, False) for text in texts], start)) or len(texts)
        outer = "".join(text for text in texts[:start] if text not in ("const", "__grid_constant__"))
        outer = outer.removeprefix("::").removeprefix("dagpu::")
        after = [text for text in texts[end:] if text not in ("const", "__restrict__", "__grid_constant__")]
        if "&" in after:
            refuse(self.kernel, place, f"{what}, a reference", "Kernels take parameters by value: drop the '&'")
        if outer not in ("Tile", "View"):
            cure = "Take Tile<T, N>, View<const T, N> or scalars, or with abi='pointers' plain pointers"
            refuse(self.kernel, place, f"{what}, a type that cannot be read here", cure)
        if "*" in after or "[" in after:
            refuse(self.kernel, place, f"{what}, a pointer", f"Pass the {outer} by value: drop the '*'")
        args = split_at_commas([Token(text, line, False) for text in texts[start + 1 : end - 1]])
        element, *ranks = ([token.text for token in arg] for arg in args)
        rank = self.types.value(ranks[0], self.declared.scope, self.bound) if len(ranks) == 1 else None
        if rank is None or rank < 1:
            cure = f"Give the element type and the rank as a number of 1 or more, as in {outer}<float, 2>"
            refuse(self.kernel, place, f"{what}, whose rank cannot be read", cure)
        spelled = self.types.read(element, self.declared.scope, self.bound)
        base = spelled.base
        known = base.kind == "generic" or (base.size and not spelled.stars and not spelled.rest)
        if not known:
            refuse(self.kernel, place, f"{what}, whose element type cannot be read", _TYPE_CURE)
        if self.abi == "pointers":
            c = base.name
            cure = f"Declare {c}* (output) or const {c}* (input), or leave abi='pointers' out"
            refuse(self.kernel, place, f"{what}, a {outer}, in a kernel with abi='pointers'", cure)
        form: CudaForm = "tile" if outer == "Tile" else "view"
        name = next(iter(after), "")
        record = None if base.kind == "scalar" else base
        return CudaParam(name, form, base.dtype if record is None else "", spelled.const, rank, line, record)
