"""Finds the pointer parameters through which a Triton kernel writes, in its TTIR (Triton's first IR, as text).

An address flows from a parameter through the values that are computed from it: `tt.splat`, `tt.addptr`, the results and
arguments of loops, branches and calls. A store or an atomic operation writes to every parameter whose address may have
come to it. The order of the operations is not looked at, so no write is missed; a loaded element carries no address.
The names of values belong to the region that defines them, and Triton uses a name again in the next region.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

Value: TypeAlias = tuple[int, str]
"""A value: the number of the region that defines it, and its name in it, with `#n` for the nth of several."""

_NAME: Final = re.compile(r"%[\w$.-]+(?:#\d+)?")
_MADE: Final = re.compile(r"(%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)*) = (.*)")
_FUNCTION: Final = re.compile(r"\s*tt\.func (public |private |)@([\w$.-]+|\"[^\"]*\")\(")
_PARAMETER: Final = re.compile(r"(%[\w$.-]+): (![\w.]+<[^ ]*>|[^ ,)]+)")
_BLOCK: Final = re.compile(r"\^\w+(?:\(([^)]*)\))?:")
_TARGET: Final = re.compile(r"\^\w+(?:\(([^)]*)\))?")
_CALL: Final = re.compile(r"tt\.call @([\w$.-]+|\"[^\"]*\")\(([^)]*)\)")
_PLACE: Final = re.compile(r"loc\(#?(\w+)\)\s*$")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')

_GIVES_ELEMENTS: Final = frozenset(
    ("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_gather", "arith.cmpi")
)
"""Operations whose results carry no address."""
_WRITES_NOTHING: Final = frozenset(
    ("tt.print", "tt.assert", "llvm.intr.assume", "cf.assert", "gpu.barrier", "tt.reduce.return", "tt.scan.return",
     "tt.map_elementwise.return", "ttg.barrier")
)  # fmt: skip
"""Operations without a result that write nothing."""
_WRITES_FIRST: Final = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_")
"""Beginnings of names of operations that write through their first operand, if they are atomic or have no result."""


@final
@dataclass(frozen=True, slots=True)
class PointerWrites:
    """The writes of a kernel."""

    parameters: dict[int, str]
    """For the number of each parameter that is written to, the place of a write: `kernels.py:12`, or empty."""
    unknown: tuple[str, ...]
    """The places of writes through an address that comes from no parameter."""


@final
@dataclass(slots=True)
class _Region:
    """A region: the text between two braces."""

    number: int
    outer: "_Region | None"
    kind: str
    """The operation that has the region: "function", "scf.for", "scf.while", "scf.if", or any other."""
    results: Sequence[Value] = ()
    """The results of the operation."""
    arguments: list[Value] = field(default_factory=list)
    """The values that `scf.yield` at its end sets, beside the results: the arguments of a loop."""
    passed: list[Value] = field(default_factory=list)
    """The values that the condition of `scf.while` passes on to the body."""
    names: set[str] = field(default_factory=set)

    def value(self, name: str) -> Value:
        """Return the value of a name that is used in this region."""
        base = name.partition("#")[0]
        region: _Region | None = self
        while region is not None:
            if base in region.names:
                return region.number, name
            region = region.outer
        return self.number, name

    def define(self, name: str) -> Value:
        self.names.add(name.partition("#")[0])
        return self.number, name


@final
class _Reader:
    """Reads the flow of addresses, line by line."""

    def __init__(self, text: str) -> None:
        self.parameters: list[tuple[Value, bool]] = []
        """The parameters of the kernel, and whether each is a pointer."""
        self.flows: defaultdict[Value, set[Value]] = defaultdict(set)
        self.writes: list[tuple[Value, str, bool]] = []
        """The address of each write, its place, and whether it is one for certain: an operation that is not known
        writes through those of its operands that are addresses."""
        self._functions: dict[str, list[Value]] = {}
        self._returned: defaultdict[str, list[tuple[int, Value]]] = defaultdict(list)
        self._calls: list[tuple[str, list[Value], list[Value]]] = []
        self._blocks: dict[tuple[int, str], list[Value]] = {}
        self._branches: list[tuple[tuple[int, str], list[Value]]] = []
        self._region = _Region(0, None, "module")
        self._regions = 0
        self._function = ""
        self._places = _places_of(text)
        for line in text.splitlines():
            if not line.startswith("#loc"):
                self._line(line)
        self._join()

    # ---- regions
    def _open(self, kind: str, results: Sequence[Value] = ()) -> _Region:
        self._regions += 1
        self._region = _Region(self._regions, self._region, kind, results)
        return self._region

    def _close(self) -> _Region:
        closed = self._region
        assert closed.outer is not None
        self._region = closed.outer
        return closed

    def _line(self, line: str) -> None:
        text = line.strip()
        place = _PLACE.search(text)
        where = self._places.get(place[1], "") if place else ""
        text = _without_places(text)
        function = _FUNCTION.match(text)
        if function is not None:
            self._begin_function(function[1].strip() != "private", function[2], text[function.end() :])
            return
        opens = text.endswith("{")
        if text.startswith("}"):
            closed = self._close()
            if opens:  # the other branch of scf.if, the body of scf.while, a further region
                opened = self._open("body" if closed.kind == "scf.while" else closed.kind, closed.results)
                if closed.kind == "scf.while":
                    opened.arguments, opened.passed = closed.arguments, closed.passed
            return
        if text.startswith("^"):
            self._block(text)
            return
        made = _MADE.match(text)
        results = [] if made is None else self._define(made[1])
        rest = text if made is None else made[2]
        kind = rest.split(None, 1)[0].strip('"') if rest else ""
        kind = kind.partition('"')[0].partition("(")[0]
        if opens:
            self._open_operation(kind, rest, results)
        elif kind:
            self._operation(kind, rest, results, where)

    def _define(self, text: str) -> list[Value]:
        values: list[Value] = []
        for each in text.split(", "):
            name, _, count = each.partition(":")
            self._region.define(name)
            several = int(count) if count else 1
            values += [(self._region.number, f"{name}#{n}" if count else name) for n in range(several)]
        return values

    def _begin_function(self, public: bool, name: str, rest: str) -> None:
        region = self._open("function")
        inside = _TEXT.sub('""', rest).partition(") attributes")[0].partition(") ->")[0]
        found = _PARAMETER.findall(re.sub(r"\{[^{}]*\}", "", inside))
        values = [region.define(parameter) for parameter, _ in found]
        self._functions[name] = values
        self._function = name
        if public:
            self.parameters = [
                (v, "tt.ptr" in kind or "tensordesc" in kind) for v, (_, kind) in zip(values, found, strict=True)
            ]

    def _block(self, text: str) -> None:
        block = _BLOCK.match(text)
        if block is None:
            return
        region = self._region
        values = [region.define(name) for name in _NAME.findall(block[1] or "")]
        self._blocks[region.number, text[: text.index(":")].partition("(")[0]] = values
        if region.kind == "body":  # scf.while: what its condition passes on
            for source, target in zip(region.passed, values, strict=False):
                self.flows[source].add(target)

    def _open_operation(self, kind: str, rest: str, results: Sequence[Value]) -> None:
        outer, region = self._region, self._open(kind, results)
        if kind in ("scf.for", "scf.while"):
            begin = rest.find("iter_args(") + len("iter_args(") if kind == "scf.for" else rest.find("(") + 1
            inside = rest[begin : rest.find(")", begin)] if "iter_args(" in rest or kind == "scf.while" else ""
            for place, (name, start) in enumerate(re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", inside)):
                argument = region.define(name)
                region.arguments.append(argument)
                self.flows[outer.value(start)].add(argument)
                if kind == "scf.for":
                    self.flows[outer.value(start)].add(results[place])
            if kind == "scf.for" and (counter := _NAME.search(rest)):
                region.define(counter[0])
        elif kind not in ("scf.if", "module", "builtin.module"):
            for name in _NAME.findall(rest):  # tt.reduce and its like: the results are made of the operands
                self._flow(outer.value(name), results)

    # ---- operations
    def _operation(self, kind: str, rest: str, results: Sequence[Value], where: str) -> None:
        region = self._region
        operands = [region.value(name) for name in _NAME.findall(_TEXT.sub("", rest))]
        if kind == "scf.yield":
            self._yield(operands)
        elif kind == "scf.condition":
            self._condition(operands)
        elif kind in ("cf.br", "cf.cond_br"):
            for target in _TARGET.finditer(rest):
                passed = [region.value(name) for name in _NAME.findall(target[1] or "")]
                self._branches.append(((region.number, target[0].partition("(")[0]), passed))
        elif kind == "tt.return":
            self._returned[self._function] += list(enumerate(operands))
        elif kind == "tt.call" and (call := _CALL.match(rest)):
            self._calls.append((call[1], operands, list(results)))
        else:
            self._plain(kind, rest, operands, results, where)

    def _plain(self, kind: str, rest: str, operands: Sequence[Value], results: Sequence[Value], where: str) -> None:
        atomic = kind.startswith("tt.atomic")
        if kind.startswith(_WRITES_FIRST) and (atomic or not results):
            self.writes.append((operands[0], where, True))
        elif "pure = false" in rest or (not results and kind not in _WRITES_NOTHING):
            self.writes += [(operand, where, False) for operand in operands]
        if kind not in _GIVES_ELEMENTS:
            for operand in operands:
                self._flow(operand, results)

    def _flow(self, source: Value, targets: Sequence[Value]) -> None:
        self.flows[source].update(targets)

    def _yield(self, operands: Sequence[Value]) -> None:
        """The end of a loop sets its arguments and gives its results; that of a branch gives its results."""
        region = self._region
        for place, operand in enumerate(operands):
            if region.kind in ("scf.for", "scf.if") and place < len(region.results):
                self.flows[operand].add(region.results[place])
            if region.kind in ("scf.for", "body") and place < len(region.arguments):
                self.flows[operand].add(region.arguments[place])

    def _condition(self, operands: Sequence[Value]) -> None:
        """`scf.condition(%again) %x, %y` passes values on to the body of a loop, and gives its results."""
        region = self._region
        region.passed = list(operands[1:])
        for source, result in zip(region.passed, region.results, strict=False):
            self.flows[source].add(result)

    def _join(self) -> None:
        """Join calls with functions, and branches with blocks, now that all of them are known."""
        for name, operands, results in self._calls:
            for operand, argument in zip(operands, self._functions.get(name, ()), strict=False):
                self.flows[operand].add(argument)
            for place, value in self._returned[name]:
                if place < len(results):
                    self.flows[value].add(results[place])
        for block, passed in self._branches:
            for source, target in zip(passed, self._blocks.get(block, ()), strict=False):
                self.flows[source].add(target)


def find_writes(ttir: str) -> PointerWrites:
    """Return the parameters through which the kernel of a module may write."""
    read = _Reader(ttir)
    origins: defaultdict[Value, set[int]] = defaultdict(set)
    for number, (value, pointer) in enumerate(read.parameters):
        if pointer:
            for reached in _reached(value, read.flows):
                origins[reached].add(number)
    written: dict[int, str] = {}
    unknown: list[str] = []
    for address, where, certain in read.writes:
        for number in sorted(origins[address]):
            written.setdefault(number, where)
        if certain and not origins[address]:
            unknown.append(where)
    return PointerWrites(written, tuple(unknown))


def _reached(start: Value, flows: "dict[Value, set[Value]]") -> Iterator[Value]:
    seen, waiting = {start}, [start]
    while waiting:
        value = waiting.pop()
        yield value
        new = flows.get(value, set()) - seen
        seen |= new
        waiting += new


def _without_places(text: str) -> str:
    """Return a line without its `loc(...)`, which nest."""
    while (at := text.find(" loc(")) >= 0:
        depth, end = 0, at + 4
        quoted = False
        while end < len(text):
            letter = text[end]
            quoted ^= letter == '"'
            depth += 0 if quoted else (letter == "(") - (letter == ")")
            end += 1
            if not depth:
                break
        text = text[:at] + text[end:]
    return text.rstrip()


def _places_of(text: str) -> dict[str, str]:
    """Return the first file and line that each `#loc` leads to."""
    direct: dict[str, str] = {}
    leads: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#loc"):
            continue
        name, _, rest = line[1:].partition(" = ")
        file = re.search(r'"([^"]*)":(\d+)', rest)
        if file is not None:
            direct[name] = f"{file[1]}:{file[2]}"
        leads[name] = re.findall(r"#(loc\d*)", rest)

    def place(name: str, left: int) -> str:
        if name in direct or not left:
            return direct.get(name, "")
        return next((found for each in leads.get(name, ()) if (found := place(each, left - 1))), "")

    return {name: place(name, 16) for name in leads}
