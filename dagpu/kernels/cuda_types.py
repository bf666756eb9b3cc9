"""The types of a CUDA text: scalars, vectors, and the structures, aliases and enumerations that the text declares.

A type is read to its size, its alignment and its fields, as the C++ ABI of 64-bit Linux lays them out. What cannot be
read so is opaque: its pointers can be passed, its values cannot. A wrong guess would pass wrong bytes to the GPU.

The names of scalar types are those of NumPy dtypes (`float32`, `int64`, `bool`), with `float16` for `half` and
`bfloat16` for `nv_bfloat16`. `long` has 64 bits and `char` is signed, as in CUDA on 64-bit Linux.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias, final

from dagpu.kernels.cuda_lexer import Token, join_tokens, past_bracket, split_at_commas, value_of
from dagpu.kernels.cuda_names import Named, Names

Kind: TypeAlias = Literal["scalar", "vector", "struct", "void", "opaque", "generic"]

_KEYWORDS: Final = frozenset(
    ("bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "void", "auto", "__int64")
)
_IGNORED: Final = frozenset(
    ("volatile", "restrict", "__restrict", "__restrict__", "__grid_constant__", "register", "typename", "struct",
     "class", "union", "enum", "template", "mutable", "inline", "constexpr", "__device__", "__host__", "__constant__",
     "__global", "__shared__")
)  # fmt: skip
_WITH_BRACKETS: Final = frozenset(
    ("__attribute__", "__align__", "alignas", "__declspec", "__location__", "__annotate__")
)
_WORD: Final = re.compile(r"[^\W\d][\w$]*")


# ---- what a type is
@final
@dataclass(frozen=True, slots=True)
class CField:
    """One field of a structure."""

    name: str
    type: CType
    offset: int
    extents: tuple[int, ...]
    """The extents of an array; empty for one value."""
    is_pointer: bool = False
    """True for an address: `type` is that of the memory, and the field has 8 bytes."""


@final
@dataclass(frozen=True, slots=True)
class CType:
    """A type without qualifiers and pointers.

    `size` is 0 if it is not known, and `why` says why. `dtype` is that of a scalar, and of the lanes of a vector.
    """

    name: str
    kind: Kind
    size: int = 0
    align: int = 1
    dtype: str = ""
    fields: tuple[CField, ...] = ()
    why: str = ""

    @property
    def pointer_field(self) -> str:
        """The name of a field that is an address, in it or in a structure in it; empty if there is none."""
        for field in self.fields:
            inside = field.name if field.is_pointer else field.type.pointer_field
            if inside:
                return inside if field.is_pointer else f"{field.name}.{inside}"
        return ""

    @property
    def complex_dtype(self) -> str:
        """The dtype of complex numbers of which it may be one: of two lanes of float or double. Empty for any other."""
        return _COMPLEX.get(self.dtype, "") if self.kind == "vector" and len(self.fields) == 2 else ""


# Messages use the first spelling of a dtype.
SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "float32": ("float",), "float64": ("double",), "bool": ("bool",),
    "complex64": ("dagpu::complex<float>",), "complex128": ("dagpu::complex<double>",),
    "float16": ("__half", "half", "nv_half"), "bfloat16": ("__nv_bfloat16", "nv_bfloat16"),
    "int8": ("signed char", "char", "int8_t"), "uint8": ("unsigned char", "uint8_t", "u_char", "u_int8_t"),
    "int16": ("short", "int16_t"), "uint16": ("unsigned short", "uint16_t", "ushort", "char16_t", "u_int16_t"),
    "int32": ("int", "signed", "int32_t", "wchar_t"),
    "uint32": ("unsigned int", "uint32_t", "uint", "char32_t", "u_int32_t", "u_int"),
    "int64": ("long long", "long", "int64_t", "ptrdiff_t", "ssize_t", "intptr_t", "intmax_t", "clock_t", "__int64",
              "off_t", "time_t"),
    "uint64": ("unsigned long long", "unsigned long", "uint64_t", "size_t", "uintptr_t", "ulong", "uintmax_t",
               "unsigned __int64", "u_int64_t", "cudaTextureObject_t", "cudaSurfaceObject_t",
               "CUtexObject", "CUsurfObject", "cudaGraphConditionalHandle", "cuuint64_t"),
}  # fmt: skip


def _type_key(words: Sequence[str]) -> str:
    """Return a key that ignores the order of the words, and an `int` or `signed` without effect."""
    key = sorted(words)
    if len(key) > 1 and "int" in key:
        key.remove("int")
    if len(key) > 1 and "signed" in key and "char" not in key:
        key.remove("signed")
    return " ".join(key)


_DTYPES: Final = {_type_key(c.split()): dtype for dtype, spellings in SPELLINGS.items() for c in spellings}
_SIZES: Final = {d: 1 if d == "bool" else int("".join(filter(str.isdigit, d))) // 8 for d in SPELLINGS}
SCALARS: Final = {d: CType(SPELLINGS[d][0], "scalar", size, size, d) for d, size in _SIZES.items()}
"""The scalar types by their dtypes."""
VOID: Final = CType("void", "void")
_POINTER: Final = SCALARS["uint64"]


def _vector(name: str, dtype: str, lanes: str, align: int) -> CType:
    size = _SIZES[dtype]
    fields = [CField(lane, SCALARS[dtype], size * i, ()) for i, lane in enumerate(lanes)]
    return CType(name, "vector", -(-size * len(lanes) // align) * align, align, dtype, tuple(fields))


def _vectors() -> dict[str, CType]:
    """Return the vector types of CUDA."""
    found: dict[str, CType] = {}
    bases = {
        "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32",
        "long": "int64", "ulong": "uint64", "longlong": "int64", "ulonglong": "uint64", "float": "float32",
        "double": "float64",
    }  # fmt: skip
    for base, dtype in bases.items():
        size = _SIZES[dtype]
        for lanes in (1, 2, 3, 4):
            align = size if lanes in (1, 3) else min(size * lanes, 16)
            found[f"{base}{lanes}"] = _vector(f"{base}{lanes}", dtype, "xyzw"[:lanes], align)
        if size == 8:
            for align in (16, 32):
                name = f"{base}4_{align}a"
                found[name] = _vector(name, dtype, "xyzw", align)
    for names, dtype in ((("__half2", "half2", "nv_half2"), "float16"),
                         (("__nv_bfloat162", "nv_bfloat162"), "bfloat16")):  # fmt: skip
        found |= {name: _vector(names[0], dtype, "xy", 4) for name in names}
    found |= dict.fromkeys(("cuComplex", "cuFloatComplex", "cufftComplex", "cusolverComplex"), found["float2"])
    found |= dict.fromkeys(("cuDoubleComplex", "cufftDoubleComplex"), found["double2"])
    found["dim3"] = _vector("dim3", "uint32", "xyz", 4)
    extents = [CField(n, SCALARS["uint64"], 8 * i, ()) for i, n in enumerate(("width", "height", "depth"))]
    found["cudaExtent"] = CType("cudaExtent", "struct", 24, 8, "", tuple(extents))
    found["cudaPos"] = replace(_vector("cudaPos", "uint64", "xyz", 8), kind="struct", dtype="")
    return found


VECTORS: Final = _vectors()
_OF_CUFFT: Final = {"cufftReal": "float32", "cufftDoubleReal": "float64"}
_COMPLEX: Final = {"float32": "complex64", "float64": "complex128"}
"""The complex types by the type of their two parts."""


def dtype_of(words: Sequence[str]) -> str | None:
    """Return the dtype of a C type without `const`, or None. `std::`, `cuda::std::` and a leading `::` are ignored."""
    if "::" in words:
        scope, _, last = "".join(words).rpartition("::")
        return _DTYPES.get(last) if scope.removeprefix("::") in ("", "std", "cuda::std") else None
    return _DTYPES.get(_type_key(words)) or (_OF_CUFFT.get(words[0]) if len(words) == 1 else None)


@final
@dataclass(frozen=True, slots=True)
class Spelled:
    """A type as a declaration spells it: with `const`, pointers and references, and the name that it declares."""

    base: CType
    const: bool = False
    """True if `base` is const."""
    stars: tuple[bool, ...] = ()
    """For each pointer, from the innermost, true if it is const."""
    extents: tuple[int | None, ...] = ()
    """The extents of an array; None where one is open, or not known."""
    reference: str = ""
    name: str = ""
    rest: str = ""
    """What could not be read; empty if everything was."""

    def as_const(self) -> Spelled:
        """Return it with `const` outermost."""
        return replace(self, stars=(*self.stars[:-1], True)) if self.stars else replace(self, const=True)


Bound: TypeAlias = Mapping[str, "Spelled | int | None"]
"""The arguments of a template by the names of its parameters; None for those that are not known yet."""


class _Layout(NamedTuple):
    fields: list[CField]
    size: int
    align: int


class _UnknownLayoutError(Exception):
    """Why the layout of a structure is not known."""


@final
class TypeReader:
    """A reader of the types of one text."""

    def __init__(self, names: Names, *, trusts: bool = False) -> None:
        self._names = names
        self._trusts = trusts
        """True if a definition under an unknown condition counts: the kernel is under one, too."""
        self._open: list[Named] = []

    def value(self, texts: Sequence[str], scope: tuple[str, ...], bound: Bound) -> int | None:
        """Return the whole number of an expression; None if it is not known."""

        def known(name: str) -> int | None:
            if name in bound:
                given = bound[name]
                return given if isinstance(given, int) else None
            found = self._names.find(name, (), scope, trusts=self._trusts)
            if found is None or found.kind != "constant" or len(self._open) > 50:
                return None
            self._open.append(found)
            result = self.value([token.text for token in found.tokens], found.scope, {})
            self._open.pop()
            return result

        return value_of(texts, known)

    def read(self, texts: Sequence[str], scope: tuple[str, ...] = (), bound: Bound | None = None) -> Spelled:
        """Return the type, and the name, of a declaration of one name, or of a type alone."""
        texts, bound = list(texts), bound or {}
        spelled, at = self._specifiers(texts, scope, bound)
        if spelled is None:
            what = join_tokens(texts)
            return Spelled(CType(what, "opaque", why="it is no type that is known here"), rest=what or "nothing")
        return self._declarator(spelled, texts, at, scope, bound)

    def with_aliases_of(self, wanted: Sequence[str], texts: Sequence[str], scope: tuple[str, ...]) -> list[str]:
        """Return the tokens of a declaration, in which an alias of one of the `wanted` templates is written out."""
        found = list(texts)
        for _ in range(20):
            at = next(
                (i for i, text in enumerate(found) if _WORD.fullmatch(text) and text not in _IGNORED | {"const"}), -1
            )
            named = self._names.find(found[at], (), scope, trusts=self._trusts) if at >= 0 else None
            if named is None or named.kind != "alias" or named.parameters is not None:
                break
            body = [token.text for token in named.tokens]
            found = [*found[:at], *body, *found[at + 1 :]]
        return found if any(text in wanted for text in found) else list(texts)

    # ---- specifiers: `const unsigned int`, `ns::T<float>`
    def _specifiers(self, texts: Sequence[str], scope: tuple[str, ...], bound: Bound) -> tuple[Spelled | None, int]:
        """Read the words before the declarator, and return the type with the index of what follows."""
        words: list[str] = []
        found: Spelled | None = None
        const, at = False, 0
        while at < len(texts):
            text = texts[at]
            if text == "const":
                const = True
            elif text in _IGNORED:
                pass
            elif text in _WITH_BRACKETS:
                at = _past(texts, at + 1) - 1
            elif text == "[" and texts[at + 1 : at + 2] == ["["]:
                at = _past(texts, at) - 1
            elif text in _KEYWORDS and found is None:
                words.append(text)
            elif text == "decltype" and found is None and not words:
                end = _past(texts, at + 1)
                found = Spelled(CType(join_tokens(texts[at:end]), "opaque", why="it is computed by decltype"))
                at = end - 1
            elif (text == "::" or _WORD.fullmatch(text)) and found is None and not words:
                found, at = self._named(texts, at, scope, bound)
                continue
            else:
                break
            at += 1
        if words:
            dtype = dtype_of(words)
            name = " ".join(words)
            if dtype is not None:
                found = Spelled(SCALARS[dtype])
            elif words == ["void"]:
                found = Spelled(VOID)
            elif words == ["auto"]:
                found = Spelled(CType("auto", "opaque", why="'auto' makes it a template"))
            else:
                found = Spelled(CType(name, "opaque", why=f"a GPU has no {name}"))
        return (found.as_const() if found and const else found), at

    def _named(self, texts: Sequence[str], at: int, scope: tuple[str, ...], bound: Bound) -> tuple[Spelled, int]:
        """Read a name with its scopes and template arguments, and return its type with the index of what follows."""
        parts: list[str] = []
        arguments: list[str] | None = None
        start, inner = at, False
        while at < len(texts):
            if texts[at] == "::":
                at += 1
                at += texts[at : at + 1] == ["template"]
            elif parts:
                break
            if at >= len(texts) or not _WORD.fullmatch(texts[at]):
                break
            parts.append(texts[at])
            at += 1
            if texts[at : at + 1] == ["<"]:
                end = _past(texts, at)
                arguments = list(texts[at + 1 : end - 1])
                at = end
                if texts[at : at + 1] == ["::"]:
                    inner = True
            elif inner:
                arguments = None
        generic = any(bound.get(text, 0) is None for text in texts[start:at])
        shown = join_tokens(texts[start:at])
        if inner:
            kind: Kind = "generic" if generic else "opaque"
            return Spelled(CType(shown, kind, why="it is a member of a template")), at
        return self._resolved(tuple(parts), arguments, shown, scope, bound, generic), at

    def _resolved(
        self,
        parts: tuple[str, ...],
        arguments: Sequence[str] | None,
        shown: str,
        scope: tuple[str, ...],
        bound: Bound,
        generic: bool,
    ) -> Spelled:
        """Return the type that a name stands for."""
        if not parts:
            return Spelled(CType(shown, "opaque", why="it is no type that is known here"), rest=shown)
        if len(parts) == 1 and parts[0] in bound:
            given = bound[parts[0]]
            return given if isinstance(given, Spelled) else Spelled(CType(parts[0], "generic"))
        named = self._names.find(parts[-1], parts[:-1], scope, arguments, trusts=self._trusts)
        if named is not None and named.kind in ("alias", "struct", "enum"):
            if len(self._open) > 50 or named in self._open:
                return Spelled(CType(shown, "opaque", why="its definition contains itself"))
            self._open.append(named)
            try:
                return self._of_name(named, arguments, shown, scope, bound, generic)
            finally:
                self._open.pop()
        if generic:
            return Spelled(CType(shown, "generic"))
        found = _built_in(parts) if arguments is None else self._of_library(parts, arguments, shown, scope, bound)
        if found is not None:
            return Spelled(found)
        why = "its definition is neither in the text nor in a header that is read"
        if self._names.is_unsure(parts[-1]):
            why = f"the alias {parts[-1]!r} cannot be followed: it may have several meanings"
        return Spelled(CType(shown, "opaque", why=why))

    def _of_name(
        self,
        named: Named,
        arguments: Sequence[str] | None,
        shown: str,
        scope: tuple[str, ...],
        bound: Bound,
        generic: bool,
    ) -> Spelled:
        """Return the type of an alias, a structure or an enumeration of the text."""
        inner: Bound = {}
        if named.parameters is not None:
            inner = self.bind(named.parameters, arguments or (), scope, bound, named.scope)
            if generic or any(value is None for value in inner.values()):
                return Spelled(CType(shown, "generic" if generic else "opaque", why="its arguments are not known"))
        texts = [token.text for token in named.tokens]
        if named.kind == "alias":
            return replace(self.read(texts, named.scope, inner), name="")
        if named.kind == "enum":
            under = self.read(texts, named.scope, inner).base if texts else SCALARS["int32"]
            return Spelled(replace(under, name=shown) if under.kind == "scalar" else under)
        try:
            layout = self._layout(named, inner)
        except _UnknownLayoutError as error:
            return Spelled(CType(shown, "opaque", why=str(error)))
        return Spelled(CType(shown, "struct", layout.size, layout.align, "", tuple(layout.fields)))

    def _of_library(
        self,
        parts: tuple[str, ...],
        arguments: Sequence[str],
        shown: str,
        scope: tuple[str, ...],
        bound: Bound,
    ) -> CType | None:
        """Return the type of `complex<T>` or `array<T, N>` of the C++ library; None for any other template."""
        home, last = "::".join(parts[:-1]), parts[-1]
        given = [[token.text for token in part] for part in split_at_commas([Token(t, 0, False) for t in arguments])]
        of = self.read(given[0], scope, bound)
        if of.rest or of.stars or not of.base.size:
            return None
        if last == "complex" and home in ("std", "cuda::std", "thrust", "cuda") and of.base.dtype in _COMPLEX:
            size = _SIZES[_COMPLEX[of.base.dtype]]
            return _vector(shown, of.base.dtype, "xy", size // 2 if home == "std" else size)
        if last == "complex" and home == "dagpu" and of.base.dtype in _COMPLEX:
            return SCALARS[_COMPLEX[of.base.dtype]]
        count = self.value(given[1], scope, bound) if len(given) == 2 else None
        if last == "array" and home in ("std", "cuda::std") and count:
            base = of.base
            return CType(shown, "struct", base.size * count, base.align, "", (CField("elements", base, 0, (count,)),))
        return None

    def bind(
        self,
        parameters: Sequence[Token],
        arguments: Sequence[str],
        scope: tuple[str, ...],
        outer: Bound,
        home: tuple[str, ...] = (),
    ) -> dict[str, Spelled | int | None]:
        """Return the arguments of a template by the names of its parameters, with defaults."""
        given = [[t.text for t in p] for p in split_at_commas([Token(t, 0, False) for t in arguments])]
        given = [] if given == [[]] else given
        found: dict[str, Spelled | int | None] = {}
        for number, parameter in enumerate(template_parameters(parameters)):
            texts, where, known = list(parameter.default), home, found
            if number < len(given) and not parameter.is_pack:
                texts, where, known = given[number], scope, dict(outer)
            value: Spelled | int | None = None
            if texts and parameter.is_type:
                spelled = self.read(texts, where, known)
                value = None if spelled.rest or spelled.base.kind == "generic" else spelled
            elif texts:
                value = self.value(texts, where, known)
            found[parameter.name] = value
        return found

    # ---- declarators: `* const __restrict__ x[4]`
    def _declarator(
        self, spelled: Spelled, texts: Sequence[str], at: int, scope: tuple[str, ...], bound: Bound
    ) -> Spelled:
        name, rest, reference = "", "", spelled.reference
        extents: list[int | None] = []
        inside: Spelled | None = None
        while at < len(texts):
            text = texts[at]
            if text == "*":
                spelled = replace(spelled, stars=(*spelled.stars, False))
            elif text == "const":
                spelled = spelled.as_const()
            elif text in _IGNORED or re.fullmatch(r"(?i)_*\w*restrict_*", text):
                pass
            elif text in _WITH_BRACKETS:
                at = _past(texts, at + 1) - 1
            elif text == "&":
                reference += "&"
            elif text == "[" and texts[at + 1 : at + 2] == ["["]:
                at = _past(texts, at) - 1
            elif text == "[":
                end = _past(texts, at)
                extents.append(self.value(texts[at + 1 : end - 1], scope, bound))
                at = end - 1
            elif text == "(" and texts[at + 1 : at + 2] in (["*"], ["&"]):
                end = _past(texts, at)
                if texts[end : end + 1] == ["("]:
                    base = CType(join_tokens(texts), "opaque", why="it is a pointer to a function")
                    return Spelled(base, stars=(False,), rest="a pointer to a function")
                inside = self._declarator(Spelled(spelled.base), texts[at + 1 : end - 1], 0, scope, bound)
                at = end - 1
            elif _WORD.fullmatch(text) and not name and text not in _KEYWORDS:
                name = text
            else:
                rest = rest or text
            at += 1
        if inside is not None:  # `float (*x)[4]`: rows of 4 that follow each other
            return replace(
                spelled, stars=(*spelled.stars, *inside.stars), extents=inside.extents, name=inside.name, rest=rest,
                reference=reference + inside.reference,
            )  # fmt: skip
        return replace(
            spelled, extents=(*extents, *spelled.extents), name=name, rest=rest or spelled.rest, reference=reference
        )

    # ---- the layout of structures
    def _layout(self, named: Named, bound: Bound) -> _Layout:
        """Return the layout of a structure by the Itanium C++ ABI.

        Raises:
            _UnknownLayoutError: it is not known.
        """
        if named.unsure:
            raise _UnknownLayoutError(named.unsure)
        fields: list[CField] = []
        size, align = 0, 1
        inner = (*named.scope, named.name)
        for base in named.bases:
            read = self.read([text for text in base if text not in ("public", "private", "protected")],
                             named.scope, bound).base  # fmt: skip
            if not read.size or read.kind != "struct":
                raise _UnknownLayoutError(f"its base {read.name!r} cannot be read")
            if read.fields:
                size = -(-size // read.align) * read.align
                fields += [replace(field, offset=field.offset + size) for field in read.fields]
                last = max(f.offset + _bytes_of(f) for f in read.fields)
                if last != read.size and len(named.members):
                    raise _UnknownLayoutError(f"its base {read.name!r} ends in padding, which its fields may use")
                size, align = size + read.size, max(align, read.align)
        for member in named.members:
            if isinstance(member, Named):  # an anonymous structure or union
                part = self._layout(member, bound)
                start = 0 if named.is_union else -(-size // part.align) * part.align
                fields += [replace(field, offset=field.offset + start) for field in part.fields]
                size, align = max(size, start + part.size), max(align, part.align)
                continue
            own = self._alignment(member, inner, bound)
            spelled = self.read(member, inner, bound)
            if spelled.rest or spelled.reference or not spelled.name:
                raise _UnknownLayoutError(f"its member '{join_tokens(member)}' cannot be read")
            kind = _POINTER if spelled.stars else spelled.base
            if not kind.size:
                raise _UnknownLayoutError(f"its member '{join_tokens(member)}' has a type of unknown size")
            extents = tuple([extent for extent in spelled.extents if extent is not None])
            if len(extents) < len(spelled.extents):
                raise _UnknownLayoutError(f"its member '{join_tokens(member)}' has an unknown extent")
            wanted = max(1 if named.is_packed else kind.align, own)
            start = 0 if named.is_union else -(-size // wanted) * wanted
            field = CField(spelled.name, spelled.base if spelled.stars else kind, start, extents, bool(spelled.stars))
            fields.append(field)
            size, align = max(size, start + _bytes_of(field)), max(align, wanted)
        align = max(align, self._alignment([token.text for token in named.head], inner, bound))
        return _Layout(fields, max(1, -(-size // align) * align), align)

    def _alignment(self, texts: Sequence[str], scope: tuple[str, ...], bound: Bound) -> int:
        """Return the alignment that attributes among the tokens ask for; 1 without any."""
        align = 1
        for at, text in enumerate(texts):
            if text in ("__align__", "alignas", "aligned", "__aligned__") and texts[at + 1 : at + 2] == ["("]:
                asked = texts[at + 2 : _past(texts, at + 1) - 1]
                value = self.value(asked, scope, bound)
                if value is None:
                    spelled = self.read(asked, scope, bound)
                    value = None if spelled.rest else 8 if spelled.stars else spelled.base.align
                if not value or value & (value - 1):
                    raise _UnknownLayoutError(f"its alignment '{join_tokens(asked)}' is not known")
                align = max(align, value)
        return align


def _bytes_of(field: CField) -> int:
    size = 8 if field.is_pointer else field.type.size
    for extent in field.extents:
        size *= extent
    return size


def _past(texts: Sequence[str], at: int) -> int:
    """Return the index after the bracket that closes `texts[at]`; the end if none does."""
    end = past_bracket([Token(text, 0, False) for text in texts[at:]], 0) if at < len(texts) else None
    return len(texts) if end is None else at + end


def _built_in(parts: tuple[str, ...]) -> CType | None:
    """Return the type of a name that CUDA, or its library, declares; None for any other."""
    scope, last = "::".join(parts[:-1]), parts[-1]
    if scope in ("std", "cuda::std") and last == "byte":
        return SCALARS["uint8"]
    dtype = dtype_of([last]) if scope in ("", "std", "cuda::std") else None
    if dtype is not None:
        return SCALARS[dtype]
    return VECTORS.get(last) if not scope else None


# ---- the parameters of templates
class TemplateParameter(NamedTuple):
    """One parameter of a template."""

    name: str
    is_type: bool
    is_pack: bool
    default: tuple[str, ...]
    text: str


def template_parameters(tokens: Sequence[Token]) -> list[TemplateParameter]:
    """Return the parameters between the `<>` of a template."""
    found: list[TemplateParameter] = []
    for number, part in enumerate(split_at_commas(tokens)):
        texts = [token.text for token in part]
        if not texts or texts[0] == "=":
            continue
        at = texts.index("=") if "=" in texts else len(texts)
        before, default = texts[:at], tuple(texts[at + 1 :])
        named = [text for text in before if _WORD.fullmatch(text)]
        is_type = before[0] in ("typename", "class") and "::" not in before and len(named) <= 2
        bare = len(named) < 2 and (is_type or before[0] in _KEYWORDS)
        name = f"({number + 1})" if bare or not named else named[-1]
        found.append(TemplateParameter(name, is_type, "..." in before or before[0] == "template", default,
                                       join_tokens(texts)))  # fmt: skip
    return found
