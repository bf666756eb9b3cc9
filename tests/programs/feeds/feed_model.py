"""A model of feeds: the value that each update is to have, and the functions that run for it. It uses nothing of dagpu.

A *value* is one output of one node. It has a *stamp*, a term that is equal only for values that are equal by
construction: of a source its revision, of an output of a function the function with the stamps of its inputs and the
number of the output, of a cutoff the contents, of a closure what its result has. And it has its *reads*: the sources
that it depends on, each with its revision, as they were met while it was evaluated.

A feed keeps the values of its last update by their stamps. An update evaluates the root, and a function runs if no
kept value has its stamp. That is all: a change of structure, a first value, a cutoff and a part that other feeds share
differ in the stamps alone. `shared()` is one value at its node, which serves whoever meets it as long as all that it
has read has its revisions.

The model is sequential. Two feeds that are asked at once have the values and, together, the runs of two that are asked
one after the other.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

import numpy as np

Stamp: TypeAlias = int
"""The number of a term; see `_Terms`."""
Name: TypeAlias = str
"""The name of a function, by which its runs are counted."""

# ---- nodes


# Descriptions of values. They never change, but for a `Cell`, and for what a `Memo` remembers.


@final
@dataclass(eq=False, slots=True)
class Given:
    """A constant. Two of equal contents are one: a closure that is called again makes another node."""

    content: Any


@final
@dataclass(eq=False, slots=True)
class Cell:
    """A source."""

    content: Any
    revision: int = 0

    def set(self, content: Any) -> None:
        """Set the source. A number that is equal to the present one is no change."""
        if isinstance(content, np.ndarray) or bits(content) != bits(self.content):
            self.content = content
            self.revision += 1


@final
@dataclass(eq=False, slots=True)
class Call:
    """A function of the contents of its inputs, which has `outs` outputs: a kernel, a function of the host, a closure
    that returns a value."""

    name: Name
    f: Callable[..., Any]
    inputs: "tuple[Node, ...]"
    outs: int = 1
    counted: bool = True
    over: int | None = None
    """The input in whose memory it writes: to run it again, what has written that memory before may have to run."""


@final
@dataclass(eq=False, slots=True)
class Output:
    """One output of a function that has several, or one part of a `Several`."""

    of: "Node"
    index: int


@final
@dataclass(eq=False, slots=True)
class Several:
    """A tuple of values."""

    inputs: "tuple[Node, ...]"


@final
@dataclass(eq=False, slots=True)
class Bind:
    """A closure that returns a node. It is called for contents that it was not given last."""

    name: Name
    of: "Node"
    f: Callable[[Any], "Node"]
    held: Hashable = None
    """What else the closure depends on: one that another closure makes holds what that one was given."""


@final
@dataclass(eq=False, slots=True)
class Cut:
    """A cutoff: a value that is equal in its contents to the one before is the one before."""

    of: "Node"


@final
@dataclass(eq=False, slots=True)
class Memo:
    """`shared()`."""

    of: "Node"
    remembered: "_Remembered | None" = None


Node: TypeAlias = Given | Cell | Call | Output | Several | Bind | Cut | Memo


# ---- values


@final
class _Terms:
    """The terms that stamps stand for, by number: a tuple of tuples would be hashed over and over."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, Stamp] = {}
        self._terms: list[tuple[Any, ...]] = []
        self._cut: dict[Stamp, set[Stamp]] = {}
        """The stamps of values that cutoffs have let through, by the stamps of these contents."""

    def stamp(self, *term: Hashable) -> Stamp:
        """The stamp of a term."""
        found = self._numbers.setdefault(term, len(self._terms))
        if found == len(self._terms):
            self._terms.append(term)
        return found

    def cut(self, contents: Hashable, before: Stamp) -> Stamp:
        """The stamp of the contents of a value that a cutoff gets."""
        stamp = self.stamp("bits", contents)
        self._cut.setdefault(stamp, set()).add(before)
        return stamp

    def functions(self, stamp: Stamp) -> tuple[Stamp, ...]:
        """The function that has made the value of a stamp; the functions that have made its parts, or what cutoffs have
        let through."""
        kind, *rest = self._terms[stamp]
        match kind:
            case "output":
                return (rest[0],)
            case "several":
                return tuple([function for part in rest for function in self.functions(part)])
            case "bits":
                return tuple([function for before in self._cut[stamp] for function in self.functions(before)])
            case _:
                return ()

    def inputs(self, function: Stamp) -> tuple[Stamp, ...]:
        """The functions whose values a function reads."""
        return tuple([each for stamp in self._terms[function][3] for each in self.functions(stamp)])

    def name(self, function: Stamp) -> Name:
        """The name of a function."""
        name: Name = self._terms[function][1]
        return name

    def is_counted(self, function: Stamp) -> bool:
        """False for a function that nobody sees run."""
        return bool(self._terms[function][4])

    def over(self, function: Stamp) -> tuple[Stamp, ...]:
        """The function over whose memory this one writes, if there is one."""
        _, _, over, inputs, _ = self._terms[function]
        return () if over is None else self.functions(inputs[over])

    def reach(self, functions: Iterable[Stamp]) -> set[Stamp]:
        """The functions on whose values these depend."""
        found, todo = set[Stamp](), list(functions)
        while todo:
            for each in self.inputs(todo.pop()):
                if each not in found:
                    found.add(each)
                    todo.append(each)
        return found


_TERMS: Final = _Terms()


@final
@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value. Of several outputs `content` has a `Value` each."""

    stamp: Stamp
    content: Any
    reads: Mapping[Cell, int]
    several: bool = False

    def contents(self) -> Any:
        """The contents as a function gets them."""
        return tuple([each.contents() for each in self.content]) if self.several else self.content


def _several(parts: tuple[Value, ...]) -> Value:
    return Value(_TERMS.stamp("several", *[part.stamp for part in parts]), parts, _merged(parts), several=True)


@final
@dataclass(slots=True)
class _Generation:
    """What one update has made and used."""

    made: dict[Stamp, tuple[Any, ...]] = field(default_factory=dict)
    """The outputs of functions."""
    given: dict[Name, Hashable] = field(default_factory=dict)
    """The contents that functions got."""
    bound: dict[Stamp, Node] = field(default_factory=dict)
    """What closures have returned."""
    wholes: dict[Several, None] = field(default_factory=dict)
    """The tuples of which a part was used."""
    spare: set[Stamp] = field(default_factory=set)
    """The functions that may have run for the other parts of these tuples."""

    def add(self, other: "_Generation") -> None:
        self.made |= other.made
        self.given |= other.given
        self.bound |= other.bound
        self.wholes |= other.wholes


@final
@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a `Memo` has: its value, and what was made below it, which the feed that takes the value takes over."""

    value: Value
    below: _Generation


def bits(content: Any) -> Hashable:
    """A term that is equal for contents that nothing can distinguish."""
    if isinstance(content, np.ndarray):
        return content.dtype.str, content.shape, content.tobytes()
    if isinstance(content, tuple):
        return tuple(map(bits, content))
    return type(content).__name__, content


def _is_current(reads: Mapping[Cell, int]) -> bool:
    return all(cell.revision == revision for cell, revision in reads.items())


def _merged(values: tuple[Value, ...]) -> dict[Cell, int]:
    """All that these values have read."""
    reads: dict[Cell, int] = {}
    for value in values:
        for cell, revision in value.reads.items():
            assert reads.setdefault(cell, revision) == revision, "one update has read two revisions of a source"
    return reads


# ---- feeds


@final
@dataclass(slots=True)
class Update:
    """What one update is to do."""

    value: Any
    ran: Counter[Name]
    """How often each function runs. It is 0 or 1 for a name that one node has."""
    again: frozenset[Name]
    """Functions that may run although nothing that they read has changed, or nobody needs what they make: they have
    written memory over which one that runs has written since; or a function that is new, and not known when the last
    update chose what it keeps, needs what they made; or they are in a tuple of which other parts are needed."""
    given: Mapping[Name, Hashable]
    """The contents that functions get."""
    functions: frozenset[Stamp]
    """The functions whose values it makes or uses."""

    def kept_by(self, feeds: Iterable["ModelFeed"]) -> set[Name]:
        """The functions whose values these feeds keep, or that they have called with the same contents."""
        found = set[Name]()
        for feed in feeds:
            found.update(map(_TERMS.name, self.functions & feed.last.made.keys()))
            found.update(name for name, contents in self.given.items() if feed.last.given.get(name) == contents)
        return found

    def left_by(self, completed: AbstractSet[Name]) -> set[Name]:
        """The functions that may run when the update is made again, after an attempt that failed and had completed
        these: the others, and those on whose values the others depend, since no feed keeps all values."""
        left = self.ran.keys() - completed
        above = _TERMS.reach([each for each in self.functions if _TERMS.name(each) in left])
        outer = {each.replace("inner", "closure") for each in left}  # their ops refer to what they were given
        return {*left, *outer, *map(_TERMS.name, above), *self.again}


@final
class ModelFeed:
    """The feed of one node."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self.last = _Generation()
        """What its last update has made and used."""
        self._reads: Mapping[Cell, int] | None = None

    @property
    def due(self) -> bool:
        """True if there is a value to hand out: there was none yet, or what the last one depends on has changed."""
        return self._reads is None or not _is_current(self._reads)

    def next(self) -> Update:
        """The update for the present revisions. It becomes the last one."""
        evaluation = _Evaluation(self.last)
        value = evaluation.of(self._root)
        self.last, self._reads = evaluation.generation, value.reads
        return evaluation.described(value)

    def preview(self) -> Update:
        """The same update; the feed and all that is remembered stay as they are."""
        evaluation = _Evaluation(self.last, remembers=False)
        return evaluation.described(evaluation.of(self._root))


def run(root: Node) -> Update:
    """A plain run: the first value of a feed of its own. What `shared()` remembers serves it."""
    return ModelFeed(root).next()


def from_scratch(root: Node) -> Any:
    """The value of a node, evaluated anew without anything that is kept, remembered or counted."""
    match root:
        case Given() | Cell():
            return root.content
        case Call():
            return root.f(*map(from_scratch, root.inputs))
        case Output():
            return from_scratch(root.of)[root.index]
        case Several():
            return tuple(map(from_scratch, root.inputs))
        case Bind():
            return from_scratch(root.f(from_scratch(root.of)))
        case Cut() | Memo():
            return from_scratch(root.of)


class _Evaluation:
    """The evaluation of one update."""

    def __init__(self, last: _Generation, remembers: bool = True) -> None:
        self._last = last
        self._remembers = remembers
        self.generation = _Generation()
        """What is made or used for the node that is evaluated now."""
        self._all = _Generation()
        self._values: dict[Node, Value] = {}
        self._below: dict[Node, _Generation] = {}
        """What was made or used for each of these."""
        self._ran: set[Stamp] = set()
        self._closures: Counter[Name] = Counter()
        """The closures that were called and return a node: what comes of it may be new."""

    def of(self, node: Node) -> Value:
        """The value of a node. A node is evaluated once."""
        around, self.generation = self.generation, _Generation()
        if node not in self._values:
            self._values[node] = self._evaluate(node)
            self._below[node] = self.generation
        around.add(self._below[node])
        self.generation = around
        return self._values[node]

    def _evaluate(self, node: Node) -> Value:
        match node:
            case Given():
                return Value(_TERMS.stamp("given", bits(node.content)), node.content, {})
            case Cell():
                return Value(_TERMS.stamp("cell", id(node), node.revision), node.content, {node: node.revision})
            case Call():
                return self._call(node)
            case Output(of=Several() as whole, index=index):
                self.generation.wholes[whole] = None
                return self.of(whole.inputs[index])
            case Output():
                part: Value = self.of(node.of).content[node.index]
                return part
            case Several():
                return _several(tuple(map(self.of, node.inputs)))
            case Cut():
                before = self.of(node.of)
                return Value(_TERMS.cut(bits(before.content), before.stamp), before.content, before.reads)
            case Bind():
                return self._bind(node)
            case Memo():
                return self._memo(node)

    def _call(self, node: Call) -> Value:
        inputs = tuple(map(self.of, node.inputs))
        function = _TERMS.stamp("call", node.name, node.over, tuple([each.stamp for each in inputs]), node.counted)
        reads = _merged(inputs)
        made = self._all.made.get(function, self._last.made.get(function))
        contents = bits(tuple([each.contents() for each in inputs]))
        if made is None:
            self._ran.add(function)
            result = node.f(*[each.contents() for each in inputs])
            made = tuple(result) if node.outs > 1 else (result,)
            assert len(made) == node.outs, f"{node.name} has {len(made)} outputs"
        self.generation.made[function] = self._all.made[function] = made
        self.generation.given[node.name] = contents
        outs = [Value(_TERMS.stamp("output", function, at), content, reads) for at, content in enumerate(made)]
        return outs[0] if node.outs == 1 else _several(tuple(outs))

    def _bind(self, node: Bind) -> Value:
        argument = self.of(node.of)
        key = _TERMS.stamp("bind", node.name, node.held, bits(argument.contents()))
        found = self._all.bound.get(key, self._last.bound.get(key))
        if found is None:
            self._closures[node.name] += 1
            found = node.f(argument.contents())
        self.generation.bound[key] = self._all.bound[key] = found
        self.generation.given[node.name] = node.held, bits(argument.contents())
        made = self.of(found)
        return Value(made.stamp, made.content, _merged((argument, made)), made.several)

    def _memo(self, node: Memo) -> Value:
        remembered = node.remembered
        if remembered is not None and _is_current(remembered.value.reads):
            self._all.add(remembered.below)
            self.generation.add(remembered.below)
            return remembered.value
        value = self.of(node.of)
        if self._remembers:
            node.remembered = _Remembered(value, self.generation)
        return value

    def described(self, value: Value) -> Update:
        """What this evaluation has found."""
        over, todo = set[Stamp](), list(self._ran)
        while todo:
            written = _TERMS.over(todo.pop())
            over.update(written)
            todo += written
        whole = _Evaluation(self.generation, remembers=False)
        wholes = list(self.generation.wholes)
        while wholes:
            for each in wholes:
                whole.of(each)
            wholes = [each for each in whole.generation.wholes if each not in whole._values]
        self.generation.spare = whole._ran
        again = over | whole._ran | (_TERMS.reach(self._ran) if self._closures else _TERMS.reach(over))
        again |= self._ran & self._last.spare
        needed = [each for each in self._ran - self._last.spare if _TERMS.is_counted(each)]
        ran = Counter(map(_TERMS.name, needed)) + self._closures
        return Update(
            value.contents(),
            ran,
            frozenset({*map(_TERMS.name, again), *whole._closures}),
            self.generation.given,
            frozenset(self.generation.made),
        )
