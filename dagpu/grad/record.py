"""What a trace has called since a gradient began to record it: `Recorder`, with a `Call` for each call of a function.

A call's arguments are evaluated first, all of them, and then the instructions of the call follow each other without
a gap; those of a call that waits for a number of the device in several pieces, with other work between them. So each
instruction belongs to one call or to none, and a value is followed by its memory: `then`, `map`, `unzip`, `shared` and
`on` need no rule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple, final
from weakref import ref

from dagpu.common.layout import Layout
from dagpu.common.places import Origin, here
from dagpu.handles import HANDLES, Partition, SharedTensor, TensorRef, find_live_state
from dagpu.handles.handle_state import HandleState, Holders, Storage
from dagpu.handles.tensors import move_handles
from dagpu.kernels.element import Elem
from dagpu.kernels.expression import Expression, ReducedExpression, TupleExpression, Written
from dagpu.kernels.generated_launch import is_number
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Inspect, Map, Value, Zip, components_of
from dagpu.ops.recording import recording_by


class Place(NamedTuple):
    """Stands for a tensor among the arguments of a call: its number."""

    number: int


class Seen(NamedTuple):
    """A tensor that went into a call or came out of it."""

    state: HandleState

    @property
    def storage(self) -> Storage:
        """The memory."""
        return self.state.storage

    @property
    def layout(self) -> Layout:
        """The place and form in the memory."""
        return self.state.layout


class Position(NamedTuple):
    """A position in the program: the builder of a stage, and how many instructions it had."""

    builder: Any
    at: int


@final
@dataclass(slots=True, eq=False)
class Call:
    """A call of a function of tensors. `arguments` are those of the call by the names of its parameters, with a `Place`
    for each tensor among them, also in lists."""

    function: Any
    arguments: dict[str, Any]
    origin: Origin
    args: list[Seen | None]
    """The tensors among the arguments, in order; None for a value of the host."""
    results: list[Seen] = field(default_factory=list)
    outer: "Call | None" = None
    """The call within which this one is, for a gradient within that call alone."""
    began: int | None = None
    """The number of segments before its begin; None for one that has not begun."""

    @property
    def name(self) -> str:
        """The function in messages."""
        function: Any = self.function
        function = function.expression if isinstance(function, Written) else function
        if isinstance(function, Expression | TupleExpression):
            return "an expression" if function.traced.is_lambda else str(function.traced.title)
        if isinstance(function, ReducedExpression):
            return str(function.made_of.label)
        name = getattr(function, "__name__", repr(function))
        if hasattr(function, "spec"):
            return f"kernel {name!r}"
        return f"array.{name}" if getattr(function, "__module__", "").startswith("dagpu.arrays") else name


class Segment(NamedTuple):
    """Instructions of a stage that follow each other and belong to a call, within no other one."""

    call: Call
    builder: Any
    begin: int
    end: int
    is_last: bool
    """True for the last one of the call."""


def seen(x: object) -> Seen | None:
    """Return what a handle refers to; None for other values and for handles that have moved."""
    handle: Any = x
    state = find_live_state(handle) if type(x) in HANDLES or type(x) is Partition else None
    return None if state is None else Seen(state)


@final
class Recorded(NamedTuple):
    """What a trace has called since a gradient began."""

    segments: Sequence[Segment]
    number: int
    """The number of segments before it began."""
    builders: Sequence[Any]
    """The builders of the stages since then."""
    start: Position
    end: Position

    def stages(self) -> Iterator[tuple[Any, Sequence[Any], int, list[Segment]]]:
        """Yield the builder of each stage, its instructions, where the first one begins, and the segments."""
        within: dict[int, list[Segment]] = {}
        for each in self.segments:
            call, outer = each.call, each.call.outer
            while outer is not None and outer.began is not None and outer.began >= self.number:
                call, outer = outer, outer.outer
            if call.began is not None and call.began >= self.number:
                mine = each._replace(call=call, is_last=each.is_last and call is each.call)
                within.setdefault(id(each.builder), []).append(mine)
        for builder in self.builders:
            last = self.end.at if builder is self.end.builder else len(builder.instructions)
            first = self.start.at if builder is self.start.builder else 0
            yield builder, builder.instructions[:last], first, within.get(id(builder), [])


@final
class Recorder:
    """The calls of one trace. Several gradients may record at once: that of a gradient does."""

    def __init__(self, evaluation: Any) -> None:
        self._evaluation = ref(evaluation)
        """Weak, since the trace holds the ops of calls, which hold this: a refused run drops its tensors at once."""
        self.segments: list[Segment] = []
        self.builders: list[Any] = []
        """The builders of the stages so far."""
        self.depth = 0
        """The number of gradients that record."""
        self.open: Call | None = None
        """The call to which instructions belong now."""
        self._since = 0
        """The number of the first instruction of the open call's segment."""

    def position(self) -> Position:
        """Return the position that the trace has reached."""
        evaluation = self._evaluation()
        assert evaluation is not None, "the trace is under way"
        builder = evaluation.builder
        return Position(builder, len(builder.instructions))

    def active(self) -> "Recorder | None":
        """Return the recorder for what is called now: none within a call, whose rule covers all that it does."""
        return None if self.open is not None else self

    def enter(self) -> tuple[int, Position]:
        """Begin a gradient. Return how many segments there are before it, and its position."""
        self.depth += 1
        self.switch(self.open)
        return len(self.segments), self.position()

    def recorded(self, number: int, start: Position) -> Recorded:
        """Return what has been called since a gradient began."""
        self.switch(self.open)
        stage = next(at for at, builder in enumerate(self.builders) if builder is start.builder)
        return Recorded(self.segments[number:], number, self.builders[stage:], start, self.position())

    def leave(self) -> bool:
        """End a gradient. Return true if no other one records."""
        self.depth -= 1
        return not self.depth

    def forget(self) -> list[Call]:
        """Return all calls, and forget them: whoever holds an op of one would keep its memory."""
        found = dict.fromkeys([each.call for each in self.segments])
        self.segments, self.builders = [], []
        return list(found)

    # ---- to which call an instruction belongs
    def switch(self, call: Call | None, *, ended: bool = False) -> None:
        """Let the instructions from here on belong to a call, or to none. With `ended` the open one is complete."""
        builder, at = self.position()
        if self.open is not None and (ended or at > self._since):
            self.segments.append(Segment(self.open, builder, self._since, at, ended))
        if not self.builders or self.builders[-1] is not builder:
            self.builders.append(builder)
        self.open, self._since = call, at

    def suspend(self, node: object) -> Call | None:
        """Return the call to which a node belongs that waits for data of the host, so that `switch` finds it again.
        What the trace evaluates behind the last node of a call belongs to it no longer."""
        f: Any = node.f if type(node) is Map else None
        mark = f.f if type(f) is Inspect else None
        if not isinstance(mark, _Mark):
            return self.open
        if mark.is_last:
            self.switch(mark.call.outer)
        else:
            self.begin(mark.call)
        return mark.call

    def begin(self, call: Call) -> None:
        """Begin a call, or go on with it."""
        if call.began is None:
            call.began, call.outer = len(self.segments), self.open
        self.switch(call)

    def finish(self, call: Call, result: Any) -> None:
        """End a call."""
        if call.began is None:  # a tensor without elements is made of nothing: the result depends on no argument
            return
        values = result if isinstance(result, tuple | list) else (result,)
        call.results = [each for each in map(seen, values) if each is not None]
        if isinstance(call.function, Written):
            del call.results[len(call.function.expression.traced.results) :]
        self.switch(call.outer, ended=True)

    def calling(self, build: Callable[[], Any]) -> Any:
        """Call a function whose calls are recorded."""
        with recording_by(self):
            return build()

    def call(self, function: Any, build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Build the op of a call. See `dagpu.ops.recording`."""
        origin = here()
        tensors: list[Any] = []
        placed = placed_of((args, kwargs), tensors)
        with recording_by(None):
            if not tensors or any(isinstance(x, Elem) for x in (*args, *kwargs.values())):
                return build(*args, **kwargs)
            call = Call(function, _bound(function, build, *placed), origin, [None] * len(tensors))
            sources = tuple([self._watched(x, call, n, origin) for n, x in enumerate(tensors)])
            last: DeviceOp[Any, Any, Any] = Map(sources[-1], Inspect(_Mark(self, call, is_last=False)), origin)
            parts = components_of(Zip((*sources[:-1], last), origin), origin)
            op = build(*filled(placed[0], parts), **filled(placed[1], parts))
            return Map(op, Inspect(_Mark(self, call, is_last=True)), origin) if isinstance(op, DeviceOp) else op

    def _watched(self, x: Any, call: Call, number: int, origin: Origin) -> DeviceOp[Any, Any, Any]:
        """Return an argument as an op whose value the call gets to see."""

        def see(value: Any) -> None:
            call.args[number] = seen(value)

        op = x if isinstance(x, DeviceOp) else Value(move_handles(x, f"being passed to {call.name}", origin), origin)
        return Map(op, Inspect(see), origin)


@final
class _Mark:
    """Sees the value before the first node of a call, or behind the last one."""

    __slots__ = ("_recorder", "call", "is_last")

    def __init__(self, recorder: Recorder, call: Call, is_last: bool) -> None:
        self._recorder, self.call, self.is_last = recorder, call, is_last

    def __call__(self, value: Any) -> None:
        if self.is_last:
            self._recorder.finish(self.call, value)
        else:
            self._recorder.begin(self.call)


def placed_of(x: Any, tensors: list[Any]) -> Any:
    """Return arguments with a `Place` for each tensor, which is added to `tensors`."""
    if isinstance(x, tuple | list) and type(x) in (tuple, list):
        items = [placed_of(each, tensors) for each in x]
        return tuple(items) if type(x) is tuple else items
    if type(x) in HANDLES or type(x) is Partition or (isinstance(x, DeviceOp) and not is_number(x)):
        tensors.append(x)
        return Place(len(tensors) - 1)
    if type(x) is dict:
        return {name: placed_of(each, tensors) for name, each in x.items()}
    return x


def filled(x: Any, parts: Sequence[Any]) -> Any:
    """Return arguments with values in place of each `Place`."""
    if type(x) is Place:
        return parts[x.number]
    if type(x) in (tuple, list):
        items = [filled(each, parts) for each in x]
        return tuple(items) if type(x) is tuple else items
    if type(x) is dict:
        return {name: filled(each, parts) for name, each in x.items()}
    return x


def _bound(function: Any, build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of its parameters; of an expression by their numbers."""
    if isinstance(function, Expression | TupleExpression | ReducedExpression | Written):
        return {str(number): each for number, each in enumerate(args)}
    if hasattr(function, "spec"):  # a kernel with new outputs, which come first
        names = [param.name for param in function.spec.params if not param.form.is_written]
        return dict(zip(names, args, strict=False)) | kwargs
    try:
        bound = signature(build).bind(*args, **kwargs)
    except TypeError:  # the call itself says what is wrong with them
        return {}
    bound.apply_defaults()
    found = dict(bound.arguments)
    return {name: each for name, each in found.items() if each or type(each) is not dict}


# ---- values
class Saved:
    """Read handles of the trace's own. What is shared or lent is read as that, so that a later run of the plan finds
    it among its arguments; of other memory there is one set of holders each."""

    def __init__(self) -> None:
        self._holders: dict[Storage, Holders] = {}

    def handle(self, seen: Seen, origin: Origin) -> Any:
        """Return a handle that reads a tensor. The trace lets go of it before it ends."""
        state = seen.state
        if state.kind is SharedTensor:
            return SharedTensor(state)
        if state.kind is TensorRef and state.storage.memory is not None and not state.void:
            return TensorRef(state)
        holders = self._holders.setdefault(state.storage, Holders())
        # With the loan of what is lent for writing: this is that loan, not another one.
        return SharedTensor(
            HandleState(SharedTensor, state.storage, state.layout, origin, loan=state.loan, holders=holders)
        )
