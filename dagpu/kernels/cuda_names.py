"""The names that a CUDA text declares: aliases, structures, enumerations and constants, with their scopes.

Nothing is resolved here: an entry has the tokens of its declaration. Bodies of functions are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from dagpu.kernels.cuda_lexer import Token, namespace_at, past_bracket, split_at_commas

NamedKind: TypeAlias = Literal["alias", "struct", "enum", "constant"]

_WORD: Final = re.compile(r"[^\W\d][\w$]*")
_STRUCTURES: Final = frozenset(("struct", "class", "union"))
_WITH_BRACKETS: Final = frozenset(("__attribute__", "__align__", "alignas", "__declspec", "decltype"))
_ACCESS: Final = frozenset(("public", "private", "protected"))
_NO_MEMBERS: Final = frozenset(("using", "typedef", "static", "friend", "template", "static_assert", "constexpr"))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """What one name stands for."""

    kind: NamedKind
    name: str
    scope: tuple[str, ...]
    tokens: Sequence[Token]
    """Of an alias the type, of an enumeration the type beneath it, of a constant its value, of a structure its body."""
    guarded: bool
    parameters: Sequence[Token] | None = None
    """Those of a template; None for anything else."""
    arguments: tuple[str, ...] | None = None
    """Those of a specialisation of a template."""
    head: Sequence[Token] = ()
    """Of a structure the tokens before its body, with its attributes."""
    bases: tuple[tuple[str, ...], ...] = ()
    members: tuple[tuple[str, ...] | Named, ...] = ()
    """The data members of a structure, each with its type and one name; a `Named` for an anonymous structure."""
    is_union: bool = False
    is_packed: bool = False
    unsure: str = ""
    """Why the layout of a structure is not known."""


@final
class Names:
    """The names that a text declares."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._by_name: dict[str, list[Named]] = {}
        self._used: set[tuple[str, ...]] = set()
        """The namespaces that `using namespace` opens, as it names them."""
        self._collect(tokens, ())

    def find(
        self,
        name: str,
        qualifiers: tuple[str, ...],
        scope: tuple[str, ...],
        arguments: Sequence[str] | None = None,
        *,
        trusts: bool = False,
    ) -> Named | None:
        """Return what a name means where it is used in a scope; None if it means nothing, or several things. With
        `trusts` a definition under an unknown condition counts, if it is the only one."""
        entries = self._by_name.get(name, ())
        for length in range(len(scope), -1, -1):
            within = (*scope[:length], *qualifiers)
            if found := [entry for entry in entries if entry.scope == within]:
                return _one_of(found, arguments, trusts)
        # Names of unnamed namespaces, of `using namespace`, and of enumerators in their enumerations.
        found = [entry for entry in entries if entry.scope[len(entry.scope) - len(qualifiers) :] == qualifiers]
        outside = [
            entry
            for entry in found
            if not entry.scope or entry.kind == "constant" or qualifiers or self._is_open(entry.scope)
        ]
        return _one_of(outside, arguments, trusts) if outside else None

    def _is_open(self, scope: tuple[str, ...]) -> bool:
        """Return true for a namespace that `using namespace` opens."""
        return any(scope[len(scope) - len(each) :] == each for each in self._used)

    def is_unsure(self, name: str) -> bool:
        """Return true for a name that is declared, but may mean several things."""
        return name in self._by_name

    def _add(self, entry: Named) -> None:
        if entry.name:
            self._by_name.setdefault(entry.name, []).append(entry)

    def _collect(self, tokens: Sequence[Token], scope: tuple[str, ...]) -> None:
        """Add the names that are declared in a scope."""
        parameters: Sequence[Token] | None = None
        i = start = 0
        while i < len(tokens):
            text = tokens[i].text
            after = i + 1
            if text == "template" and after < len(tokens) and tokens[after].text == "<":
                after = past_bracket(tokens, after) or len(tokens)
                parameters = tokens[i + 2 : after - 1]
            elif text == "namespace":
                opened = namespace_at(tokens, i)
                if opened is not None:
                    end = past_bracket(tokens, opened[1] - 1) or len(tokens) + 1
                    self._collect(tokens[opened[1] : end - 1], (*scope, *opened[0]))
                    after = start = end
            elif text == "extern" and after < len(tokens) and tokens[after].text == "{":
                end = past_bracket(tokens, after) or len(tokens) + 1
                self._collect(tokens[after + 1 : end - 1], scope)
                after = start = end
            elif text == "using":
                after = start = _end_of(tokens, i)
                self._add_using(tokens[i + 1 : after], scope, parameters)
            elif text == "typedef":
                after = start = _end_of(tokens, i)
                self._add_typedef(tokens[i + 1 : after], scope)
            elif text in _STRUCTURES and (at := _body_at(tokens, i)) is not None:
                end = past_bracket(tokens, at) or len(tokens) + 1
                self._add_structure(tokens[i:at], tokens[at + 1 : end - 1], scope, parameters)
                after = end
            elif text == "enum" and (at := _body_at(tokens, i)) is not None:
                end = past_bracket(tokens, at) or len(tokens) + 1
                self._add_enumeration(tokens[i:at], tokens[at + 1 : end - 1], scope)
                after = end
            elif text in ("(", "["):
                after = past_bracket(tokens, i) or len(tokens)
            elif text == "{":
                after = start = past_bracket(tokens, i) or len(tokens)
                parameters = None
            elif text == ";":
                if parameters is None:
                    self._add_constant(tokens[start:i], scope)
                parameters, start = None, after
            i = after

    def _add_constant(self, item: Sequence[Token], scope: tuple[str, ...]) -> None:
        texts = [token.text for token in item]
        if not {"const", "constexpr"}.intersection(texts) or "=" not in texts:
            return
        at = texts.index("=")
        if at and _WORD.fullmatch(texts[at - 1]) and "*" not in texts[:at]:
            guarded = any(token.guarded for token in item) or "#" in texts
            self._add(Named("constant", texts[at - 1], scope, item[at + 1 :], guarded))

    def _add_using(self, item: Sequence[Token], scope: tuple[str, ...], parameters: Sequence[Token] | None) -> None:
        texts = [token.text for token in item]
        if "=" in texts[1:]:
            at = texts.index("=")
            guarded = any(token.guarded for token in item) or "#" in texts
            self._add(Named("alias", texts[0], scope, item[at + 1 :], guarded, parameters))
        elif texts[:1] == ["namespace"]:
            self._used.add(tuple([text for text in texts[1:] if text != "::"]))
        elif len(texts) > 2 and texts[-2] == "::":  # `using std::uint8_t`
            self._add(Named("alias", texts[-1], scope, [Token("::", 0, False), *item], item[0].guarded))

    def _add_typedef(self, item: Sequence[Token], scope: tuple[str, ...]) -> None:
        """Add the names of a `typedef`, and the structure in it."""
        guarded = any(token.guarded for token in item) or any(token.text == "#" for token in item)
        base: Sequence[Token] | None = None
        declarators = list(item)
        brace = next((i for i, token in enumerate(item) if token.text == "{"), None)
        if brace is not None:
            end = past_bracket(item, brace) or len(item)
            declarators = list(item[end:])
            head = item[:brace]
            plain = [token for token in declarators if _WORD.fullmatch(token.text)]
            tag = _tag_of(head) or (plain[-1].text if len(split_at_commas(declarators)) == 1 and plain else
                                    plain[0].text if plain else "")  # fmt: skip
            if any(token.text == "enum" for token in head):
                self._add_enumeration(head, item[brace + 1 : end - 1], scope, tag)
            else:
                leading = [t for t in declarators if t.text in _WITH_BRACKETS or t.text in ("(", ")")]
                extra = declarators if leading else []
                self._add_structure([*head, *extra], item[brace + 1 : end - 1], scope, None, tag)
            base = [Token(tag, item[0].line, guarded)]
        for _number, part in enumerate(split_at_commas(declarators)):
            at = _name_at(part)
            if at is None:
                continue
            if base is None:
                first = min([i for i, token in enumerate(part) if token.text in ("*", "(", "&") and i < at] + [at])
                base = part[:first]
                rest = [*part[first:at], *part[at + 1 :]]
            else:
                rest = [*part[:at], *part[at + 1 :]]
            name = part[at].text
            if [token.text for token in base] != [name] or rest:
                self._add(Named("alias", name, scope, [*base, *rest], guarded))

    def _add_enumeration(
        self, head: Sequence[Token], body: Sequence[Token], scope: tuple[str, ...], tag: str = ""
    ) -> None:
        guarded = any(token.guarded for token in head)
        name = _tag_of(head) or tag
        colon = next((i for i, token in enumerate(head) if token.text == ":"), len(head))
        self._add(Named("enum", name, scope, head[colon + 1 :], guarded))
        previous: list[Token] = []
        for part in split_at_commas(body):
            if not part:
                continue
            value = list(part[2:]) if len(part) > 2 and part[1].text == "=" else previous
            value = value or [Token("0", part[0].line, False)]
            odd = any((token.guarded and not guarded) or token.text == "#" for token in part)
            self._add(Named("constant", part[0].text, scope, value, guarded or odd))
            previous = [Token("(", 0, False), *value, Token(")", 0, False), Token("+", 0, False), Token("1", 0, False)]

    def _add_structure(
        self,
        head: Sequence[Token],
        body: Sequence[Token],
        scope: tuple[str, ...],
        parameters: Sequence[Token] | None,
        tag: str = "",
    ) -> None:
        made = _structure(head, body, scope, parameters, tag)
        self._add(made)
        self._collect(body, (*scope, made.name))


def _one_of(entries: Sequence[Named], arguments: Sequence[str] | None, trusts: bool) -> Named | None:
    """Return the entry that a name means; None if there are several."""
    special = [entry for entry in entries if entry.arguments is not None]
    if special:
        exact = [entry for entry in special if entry.arguments == tuple(arguments or ())]
        return exact[0] if len(exact) == 1 and (trusts or not exact[0].guarded) else None
    if any(entry.guarded for entry in entries) and not (trusts and len(entries) == 1):
        return None
    first = entries[0]
    texts = [token.text for token in first.tokens]
    same = all([token.text for token in entry.tokens] == texts and entry.kind == first.kind for entry in entries)
    return first if same else None


def _end_of(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the `;` that ends a declaration."""
    i = start
    while i < len(tokens) and tokens[i].text != ";":
        i = (past_bracket(tokens, i) or len(tokens)) if tokens[i].text in ("{", "(", "[") else i + 1
    return i


def _body_at(tokens: Sequence[Token], start: int) -> int | None:
    """Return the index of the `{` of a structure that begins at `start`; None if it has no body there."""
    i = start + 1
    while i < len(tokens):
        text = tokens[i].text
        if text == "{":
            return i
        if text in _WITH_BRACKETS and i + 1 < len(tokens) and tokens[i + 1].text == "(":
            i = past_bracket(tokens, i + 1) or len(tokens)
            continue
        if text in ("[", "<"):
            i = past_bracket(tokens, i) or len(tokens)
            continue
        if not (_WORD.fullmatch(text) or text in ("::", ":", ",", "...")) or text == "operator":
            return None
        i += 1
    return None


def _tag_of(head: Sequence[Token]) -> str:
    """Return the name of the structure or enumeration whose body follows; empty if it has none."""
    name, i = "", 0
    while i < len(head):
        text = head[i].text
        if text in _WITH_BRACKETS:
            i = past_bracket(head, i + 1) or len(head) if i + 1 < len(head) else i + 1
            continue
        if text in ("[", "<"):
            i = past_bracket(head, i) or len(head)
            continue
        if text == ":":
            break
        plain = text not in _STRUCTURES and text not in ("enum", "final", "const", "volatile", "static")
        if _WORD.fullmatch(text) and plain:
            name = text
        i += 1
    return name


def _name_at(part: Sequence[Token]) -> int | None:
    """Return the index of the name that a declarator declares; None without one."""
    end = next((i for i, token in enumerate(part) if token.text == "["), len(part))
    for i, token in enumerate(part[:end]):
        if token.text == "(" and i + 1 < len(part) and part[i + 1].text in ("*", "&"):
            inner = [j for j in range(i, end) if _WORD.fullmatch(part[j].text)]
            return inner[0] if inner else None
        if token.text == "(":
            end = i
            break
    words = [i for i, token in enumerate(part[:end]) if _WORD.fullmatch(token.text)]
    words = [i for i in words if part[i].text not in _WITH_BRACKETS]
    return words[-1] if words else None


def _structure(
    head: Sequence[Token],
    body: Sequence[Token],
    scope: tuple[str, ...],
    parameters: Sequence[Token] | None,
    tag: str,
) -> Named:
    """Return a structure with its data members."""
    name = _tag_of(head) or tag
    texts = [token.text for token in head]
    arguments: tuple[str, ...] | None = None
    if name in texts[:-1] and texts[texts.index(name) + 1] == "<":
        at = texts.index(name) + 1
        arguments = tuple(texts[at + 1 : (past_bracket(head, at) or len(head)) - 1])
    colon = texts.index(":") if ":" in texts else len(texts)
    bases = tuple([tuple(t.text for t in part) for part in split_at_commas(head[colon + 1 :])]) if ":" in texts else ()
    members: list[tuple[str, ...] | Named] = []
    unsure = "it has a virtual base" if any("virtual" in base for base in bases) else ""
    for item in _items(body):
        problem = _read_member(item, scope, members)
        unsure = unsure or problem
    guarded = any(token.guarded for token in head)
    if any(token.text == "#" or (token.guarded and not guarded) for token in body):
        unsure = "its members depend on a preprocessor condition, which is not known here"
    packed = bool({"packed", "__packed__"}.intersection(texts))
    return Named("struct", name, scope, body, guarded, parameters, arguments, head, bases, tuple(members),
                 "union" in texts[:1], packed, unsure)  # fmt: skip


def _items(body: Sequence[Token]) -> list[Sequence[Token]]:
    """Return the members of a structure: each with the body of a function, or of a structure, that it has."""
    found: list[Sequence[Token]] = []
    start = i = 0
    while i < len(body):
        text = body[i].text
        if text in ("(", "["):
            i = past_bracket(body, i) or len(body)
            continue
        if text == "{":
            item = body[start:i]
            i = past_bracket(body, i) or len(body)
            first = _plain_texts(item)[:1]
            if "(" in [token.text for token in item] and first and first[0] not in (*_STRUCTURES, "enum", "typedef"):
                found.append(body[start:i])
                start = i
            continue
        i += 1
        if text == ";":
            found.append(body[start : i - 1])
            start = i
        elif text == ":" and i - 2 >= 0 and body[i - 2].text in _ACCESS:
            start = i
    if start < len(body):
        found.append(body[start:])
    return [item for item in found if item]


def _plain_texts(item: Sequence[Token]) -> list[str]:
    """Return the tokens of a member without attributes in brackets."""
    found: list[str] = []
    i = 0
    while i < len(item):
        text = item[i].text
        if text in _WITH_BRACKETS and i + 1 < len(item):
            i = past_bracket(item, i + 1) or len(item)
            continue
        if text == "[" and i + 1 < len(item) and item[i + 1].text == "[":
            i = past_bracket(item, i) or len(item)
            continue
        found.append(text)
        i += 1
    return found


def _read_member(item: Sequence[Token], scope: tuple[str, ...], members: list[tuple[str, ...] | Named]) -> str:
    """Add the data members of one declaration in a structure. Return why the layout is not known; empty if it is."""
    plain = _plain_texts(item)
    if not plain or plain[0] in _NO_MEMBERS or "operator" in plain or "static" in plain:
        return ""
    if "virtual" in plain:
        return "it has virtual functions"
    if plain[0] in (*_STRUCTURES, "enum"):
        brace = next((i for i, token in enumerate(item) if token.text == "{"), None)
        if brace is not None:
            end = past_bracket(item, brace) or len(item)
            declared = list(item[end:])
            tag = _tag_of(item[:brace])
            if plain[0] != "enum" and not declared and not tag:
                members.append(_structure(item[:brace], item[brace + 1 : end - 1], scope, None, ""))
            elif declared and tag:
                members += [(tag, *[t.text for t in part]) for part in split_at_commas(declared)]
            elif declared:
                return "it has a member of a type without a name"
            return ""
        if len(plain) < 3 and "*" not in plain:
            return ""  # `struct Other;`
    stop = next((i for i, text in enumerate(plain) if text in ("=", "{")), len(plain))
    before = plain[:stop]
    if "(" in before and before[before.index("(") : before.index("(") + 2] != ["(", "*"]:
        return ""  # a function
    if "(" in before:
        return "it has a pointer to a function"
    if ":" in before:
        return "it has bit-fields"
    tokens = list(item)
    parts = split_at_commas(tokens)
    first = [token.text for token in parts[0]]
    first = first[: next((i for i, text in enumerate(first) if text in ("=", "{")), len(first))]
    members.append(tuple(first))
    at = _name_at([Token(text, 0, False) for text in first])
    if len(parts) > 1 and at is not None:
        base = first[: min([i for i, text in enumerate(first) if text == "*"] + [at])]
        for part in parts[1:]:
            texts = [token.text for token in part]
            texts = texts[: next((i for i, text in enumerate(texts) if text in ("=", "{")), len(texts))]
            members.append((*base, *texts))
    return ""
