"""The tracer: an op becomes a `Program`, stage by stage.

It walks the DAG with a stack of its own (a chain of 100,000 ops must not meet the recursion limit): `todo` holds nodes
to evaluate and, behind `FINISH`, nodes whose inputs stand on top of `done`. Closures are called once, with handles.
A row of launches and maps of dagpu's own, each fed by the one before, goes through it as one piece: most of a DAG.
What depends on host data is suspended (`Later`); when the stage has run, the tracer goes on from there.

    while not tracer.finished:
        stage = tracer.stage()            # trace as far as it goes
        ... run stage.program ...         # unless it is empty
        tracer.settle(memory)             # here is what the stage made

What a run takes (handles out of ops, claims on `Shared` and `Unzip`) it can give back until something was submitted.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, assert_never, final

from dagpu.device import Device, Stream
from dagpu.errors import CaptureError, MovedError, NestedRunError
from dagpu.handles import HANDLES, SharedTensor, TensorRef
from dagpu.lowering.builder import Builder
from dagpu.lowering.emit import (
    emit_alloc,
    emit_copy,
    emit_from_host,
    emit_graph_launch,
    emit_host_call,
    emit_launch,
    emit_to_host,
)
from dagpu.lowering.later import NOT_YET, PENDING, Foreign, FromCell, FromItems, Later, Suspended, resolved, template
from dagpu.lowering.leaves import Leaves
from dagpu.lowering.policies import OnStream
from dagpu.lowering.program import Items, Program
from dagpu.lowering.remember import Memory, Remembering, once_of, own_result
from dagpu.lowering.reuse import Repeat, is_fixed, repeat_of
from dagpu.lowering.structure import Inputs
from dagpu.lowering.takings import Takings
from dagpu.ops.base import DeviceOp, enter_closure, leave_closure
from dagpu.ops.compose import (
    BUILT_IN,
    HostCall,
    Inspect,
    Item,
    Map,
    On,
    Pure,
    Shared,
    Then,
    ToHost,
    Unzip,
    Value,
    Zip,
)  # fmt: skip
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.launch import Launch
from dagpu.ops.memory import Alloc, Copy, FromHost
from dagpu.ops.nodes import Node
from dagpu.ops.once import Once, newest
from dagpu.origin import Origin, describe, start_of_run
from dagpu.ownership import handles_in, moves
from dagpu.standins import SymbolicNumber, has_arrays, is_self_contained, without_standins
from dagpu.storage import Storage

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Placement: TypeAlias = tuple[Device, int, bool]
"""Device for new memory, number of the policy, and whether the device was asked for by name."""


@final
class _Mark:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


FINISH: Final = _Mark("the inputs of the node below are done: what `done` has above the height below that")
FINISH_ROW: Final = _Mark("the input of the row below is done")
RESTORE: Final = _Mark("the placement below holds again")


@final
class Stage:
    """What one call of `Tracer.stage` found: a program, what its inputs are, and what it must lock."""

    __slots__ = ("graphs", "inputs", "locks", "program")

    def __init__(self, program: Program, builder: Builder) -> None:
        self.program = program
        self.inputs = builder.inputs
        self.locks = builder.locks
        self.graphs = builder.graphs


@final
class Tracer:
    """The trace of one run of one op.

    `find` finds a device by its name; `policy` and `device` place what no `On` places. `inputs` are the leaves of the
    op, where its plan may serve runs with others. `after` is the trace of an op whose program this one continues.
    """

    def __init__(
        self,
        op: AnyOp,
        device: Device,
        policy: Any,
        find: Callable[[str], Device],
        inputs: Inputs | None = None,
        *,
        after: "Tracer | None" = None,
    ) -> None:
        self.thread = threading.get_ident()
        """Where the run is driven: who blocks that thread must not wait for it."""
        self._find = find
        self._origin: Origin = start_of_run()
        self._policies: list[Any] = [policy]
        self._policy_numbers: dict[Hashable, int] = {id(policy): 0}
        self._place: Placement = (device, 0, False)
        self._loans: dict[Storage, object] = {}
        self._leaves = Leaves(inputs)
        self._builder = Builder(self._policies, self._loans, symbolic=inputs is not None)
        if after is not None:
            self._policies, self._policy_numbers = after._policies, after._policy_numbers
            self._builder = after._builder
            self._builder.lend_anew(self._loans)
        self._todo: list[Any] = [op]
        self._done: list[Any] = []
        self._seen: set[AnyOp] = set()
        self._suspended: list[Later] = []
        self._cells: list[Later] = []
        self._takings = Takings(self._leaves, self._loans, self._origin)
        self._memory = Memory()
        self._root: Any = PENDING
        self._pure = inputs is not None
        """May functions of the user's be called whose results follow from the leaves?"""
        self._began = newest()
        self.reads: set[int] = set()
        """The numbers among the leaves that something needed the value of: the trace holds for that alone."""

    # ---- stages

    @property
    def finished(self) -> bool:
        """Is the result there?"""
        self._root = resolved(self._root)
        return self._root is not PENDING and type(self._root) is not Later

    @property
    def result(self) -> Any:
        """The value of the op, once `finished`."""
        return self._leaves.given_back(without_standins(self._root)) if self._pure else self._root

    def stage(self) -> Stage:
        """Trace as far as it goes without running anything."""
        if self._root is PENDING:
            self._walk()
            self._root = self._done.pop()
        self._resume()
        if not self._suspended:
            self._seen.clear()  # ops that closures have built hold borrows, which would pass for outputs
        self._memory.forget_unreachable()
        program = self._builder.program()
        return Stage(program, self._builder)

    def repeat(self) -> Repeat | None:
        """Between the first stage's trace and its end: what spares later runs of the same op their trace.

        None where that cannot be; the rules are those of dagpu.lowering.reuse.
        """
        if self._leaves.given is None:
            return None
        for later in self._suspended:
            if type(later.cause) is not FromItems:
                return None
        repeat = repeat_of(self._root, self._leaves, self._builder)
        self._leaves.forbid()
        return repeat

    @property
    def ends_here(self) -> bool:
        """Will the result be there when the stage that was traced has run?"""
        return all(type(later.cause) is FromItems for later in self._suspended)

    def left_over(self) -> Unzip[Any] | None:
        """An op outside this one that might ask for a part of what the stage makes."""
        return self._memory.left_over()

    def outputs(self) -> dict[Storage, bool]:
        """The memory that the stage makes and somebody refers to, as what is locked exclusively."""
        return {storage: True for _, storage in self._builder.outputs()}

    @property
    def lent(self) -> list[tuple[Any, Storage]]:
        """The handles from outside that the stage uses and does not move, with their memory."""
        return list(self._builder.lent.values())

    def record(self, how: str) -> Any:
        """Trace the op into the builder that it shares with earlier ones, and give its value. It must be there at once:
        handles to memory from outside, plain values. `how` says to the user where the op was put.

        Raises:
            CaptureError: the op makes memory, or waits for the host.
        """
        mark = self._builder.mark()
        try:
            self._walk()
            value = self._done.pop()
            self._builder.refuse_made(mark, how, self._origin)
            if type(resolved(value)) is Later or self._suspended:
                raise CaptureError(
                    f"the op {how} at {describe(self._origin)} waits for data of the host, and nothing waits here. "
                    "Leave to_host() and host_map() to an op that runs after the launch."
                )
        except BaseException:
            self._builder.roll_back(mark)
            raise
        self._memory.abandon()
        self._root = value
        return value

    def submitted(self) -> None:
        """From now on nothing that was taken can be given back."""
        self._takings.submitted()

    def settle(self, memory: list[Any], *, publish: bool = True) -> None:
        """The stage is complete; `memory[i]` is what buffer i holds now. With `publish`, what `Shared` and `Unzip` ops
        have made is there for other runs too."""
        for index, storage in self._builder.outputs():
            storage.settle(memory[index])
        for later in self._cells:
            cause = later.cause
            if type(cause) is FromCell:
                later.value = memory[cause.buffer]
        self._cells.clear()
        self._builder = Builder(self._policies, self._loans, symbolic=self._pure)
        if publish:
            self._memory.publish()
        else:
            self._memory.abandon()

    def waits_for(self) -> list[Once]:
        """What other runs are making and this one cannot go on without."""
        causes = [later.cause for later in self._suspended]
        onces = [once_of(cause.node) for cause in causes if type(cause) is Foreign]
        return [once for once in onces if once.owner is not self]

    def stuck(self) -> NestedRunError:
        """What to raise when nothing is left to run and to wait for, and there is still no result."""
        return own_result(self._origin)

    def abandon(self, reason: str) -> None:
        """The run failed or was cancelled: give back what can be given back, and forget the claims."""
        self._builder.lose(reason)
        self._takings.give_back()
        self._memory.abandon()
        self._todo.clear()
        self._done.clear()
        self._suspended.clear()

    # ---- walking

    def _walk(self) -> None:
        todo, done = self._todo, self._done
        while todo:
            node = todo.pop()
            if node is FINISH:
                node, below = todo.pop(), todo.pop()
                inputs = tuple(done[below:])
                del done[below:]
                self._apply(node, inputs)
            elif node is FINISH_ROW:
                self._apply_row(todo.pop())
            elif node is RESTORE:
                self._place = todo.pop()
            else:
                self._visit(node)

    def _visit(self, node: AnyOp) -> None:
        """Follow a row of launches and built-in maps with one input each up to what feeds it; that comes first.

        In most DAGs nearly all nodes stand in such a row, and each saves two turns of `_walk`.
        """
        row: list[Map[Any] | Launch] = []
        seen, kind = self._seen, type(node)
        while kind is not Value and kind is not Shared:
            if node in seen:
                raise self._twice(node)
            seen.add(node)
            if type(node) is Map and type(node.f) in BUILT_IN:
                row.append(node)
                node = node.source
            elif type(node) is Launch:
                ops = self._lazy_arguments(node)
                if len(ops) != 1:
                    break
                row.append(node)
                node = ops[0]
            else:
                break
            kind = type(node)
        if row:
            self._todo += (row, FINISH_ROW)
        self._begin(node)

    def _begin(self, node: AnyOp) -> None:  # reason: one case a node is what makes it total
        """Evaluate a leaf, or put a node's inputs on the stack before it."""
        todo = self._todo
        match node:
            case Launch():
                todo += (len(self._done), node, FINISH, *reversed(self._lazy_arguments(node)))
            case Map() | Then() | ToHost() | HostCall():
                todo += (len(self._done), node, FINISH, node.source)
            case Value():
                self._done.append(self._value(node))
            case Alloc():
                self._done.append(emit_alloc(node, self._builder, self._place[0], self._place[1]))
            case FromHost():
                leaf = None if self._leaves.inputs is None else self._leaves.inputs.arrays.get(id(node))
                self._done.append(emit_from_host(node, leaf, self._builder, self._place[0], self._place[1]))
            case Copy():
                source, into = self._takings.take(node.source, node), self._takings.take(node.into, node)
                device, policy, chosen = self._place
                self._done.append(emit_copy(node, source, into, self._builder, device if chosen else None, policy))
            case GraphLaunch():
                emit_graph_launch(node, self._builder, self._on_stream(node.captured.stream))
                self._leaves.graphs.append(node.captured)
                self._done.append(None)
            case Zip():
                todo += (len(self._done), node, FINISH, *reversed(node.sources))
            case On():
                todo += (self._place, RESTORE, node.source)
                self._place = self._placed(node)
            case Shared():
                self._visit_once(node, node.source)
            case Unzip():
                self._visit_once(node, node.split.source)
            case _:
                raise TypeError(
                    f"{node!r} is no op of dagpu's: the set of ops is closed. Build it from ops and kernels."
                )

    def _apply_row(self, row: list[Map[Any] | Launch]) -> None:
        """Replace the value on top of `done`, which feeds the last node of a row, by the value of the first."""
        value = self._done.pop()
        while row:
            node = row.pop()
            if type(value) is Later:
                self._apply(node, (value,))
                value = self._done.pop()
            elif type(node) is Launch:
                value = self._launch(node, (value,))
            else:
                f: Any = node.f
                try:
                    value = f.apply(value, node.origin)
                except Exception as error:
                    error.add_note(f"dagpu: in the op built at {describe(node.origin)}")
                    raise
        self._done.append(value)

    def _apply(self, node: Node, inputs: tuple[Any, ...]) -> None:
        """Give the node its inputs: its value goes on `done`, or an op on `todo` whose value will."""
        if Later in map(type, inputs):
            inputs = tuple(resolved(item) for item in inputs)
            if Later in map(type, inputs) and self._wait(node, inputs):
                return
        builder, (device, policy, _) = self._builder, self._place
        match node:
            case Launch():
                self._done.append(self._launch(node, inputs))
            case Map():
                self._map(node, inputs[0])
            case Then():
                op = self._call(node, node.f, inputs[0])
                if not isinstance(op, DeviceOp):
                    raise TypeError(
                        f"the closure of .then at {describe(node.origin)} gave {type(op).__name__}, no op. "
                        "Return an op (value(x) makes one of a value), or use .map."
                    )
                self._todo.append(op)
            case ToHost():
                self._later(emit_to_host(node, inputs[0], builder, policy))
            case HostCall():
                argument = self._host_argument(node, template(inputs[0]))
                self._later(emit_host_call(node, argument, builder, device, policy))
            case Zip():
                self._done.append(inputs)
            case Shared():
                self._done.append(self._memory.keep_shared(node, inputs[0]))
            case Unzip():
                self._memory.keep_split(node.split, inputs[0], node.origin)
                self._done.append(self._memory.component(node))
            case Value() | Alloc() | FromHost() | Copy() | On() | GraphLaunch():
                raise AssertionError(f"{node!r} has no inputs to wait for")
            case _:
                assert_never(node)

    def _map(self, node: Map[Any], argument: Any) -> None:
        if type(node.f) in BUILT_IN:
            self._done.append(argument)
            self._apply_row([node])
            return
        made = self._call(node, node.f, argument)
        # An op that was a value all along may pass; one that the closure built would be lost without a word.
        if isinstance(made, DeviceOp) and made is not argument:
            raise TypeError(
                f"the closure of .map at {describe(node.origin)} gave an op, which nobody would run. Use .then."
            )
        self._done.append(made)

    def _wait(self, node: Node, inputs: tuple[Any, ...]) -> bool:
        """Some inputs are still to come: suspend the node. False if it can do with what there is."""
        match node:
            case Zip():
                later = Later(FromItems(inputs))
                self._suspended.append(later)
                self._done.append(later)
                return True
            case HostCall() if template(inputs[0]) is not NOT_YET:
                return False
            case Unzip() if type(inputs[0].cause) is FromItems:
                return False
            case _:
                later = Later(Suspended(node, inputs, self._place))
                if isinstance(node, Shared):
                    self._memory.put_off(node.once, later)
                elif isinstance(node, Unzip):
                    self._await_components(node, inputs[0])
                    return True
                self._suspended.append(later)
                self._done.append(later)
                return True

    def _later(self, later: Later) -> None:
        self._cells.append(later)
        self._done.append(later)

    def _resume(self) -> None:
        """Go on with every suspended node whose inputs have come, until none is left that can."""
        progress = True
        while progress:
            progress = False
            waiting, self._suspended = self._suspended, []
            for later in waiting:
                if self._go_on(later):
                    progress = True
                else:
                    self._suspended.append(later)

    def _go_on(self, later: Later) -> bool:
        """Give a `Later` its value, or the `Later` that stands for it now, if what it waits for has come."""
        match later.cause:
            case FromItems(items=items) | Suspended(inputs=items):
                inputs = tuple([resolved(item) for item in items])
                if Later in map(type, inputs):
                    return False
                if type(later.cause) is FromItems:
                    later.value = inputs
                    return True
                assert type(later.cause) is Suspended
                self._place = later.cause.place
                self._apply(later.cause.node, inputs)
            case Foreign(node=node, place=place):
                once = once_of(node)
                if not once.settled() and once.owner is not self:
                    return False
                self._place = place
                self._seen.discard(node)
                self._todo.append(node)
            case FromCell():
                return False
        self._walk()
        value = resolved(self._done.pop())
        if value is later:
            raise own_result(self._origin)
        later.value = value
        return True

    # ---- one node

    def _value(self, node: Value[Any]) -> Any:
        held, leaves = node.held, self._leaves
        if leaves.inputs is not None and id(node) in leaves.inputs.starts:
            start = leaves.inputs.starts[id(node)]
            return leaves.arguments(held, start, lambda handle: self._takings.take(handle, node), self.reads)
        if type(held) is SharedTensor or type(held) is TensorRef:
            self._takings.keep(held, node)
        elif is_fixed(held):
            pass
        elif moves(held):
            if node in self._seen:
                raise self._twice(node)
            self._seen.add(node)
            held = self._takings.take(held, node)
        elif self._pure:
            held = self._takings.take(held, node)
        else:
            leaves.forbid()
        return held

    def _lazy_arguments(self, node: Launch) -> list[AnyOp]:
        """The ops among a call's arguments; the handles among them are locked at once."""
        ops: list[AnyOp] = []
        args = node.args
        for index in node.kernel.open_places:
            arg = args[index]
            if isinstance(arg, DeviceOp):
                ops.append(arg)
            elif type(arg) in HANDLES:
                self._builder.claim(arg)
        return ops

    def _launch(self, node: Launch, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Launch a kernel, with `inputs` for the ops among its arguments; gives the arguments."""
        given = list(node.args)
        used = 0
        for index in node.kernel.open_places:
            arg = given[index]
            if isinstance(arg, DeviceOp):
                given[index] = inputs[used]
                used += 1
            elif type(arg) in HANDLES:
                given[index] = self._takings.take(arg, node)
        leaves = self._leaves.inputs
        if leaves is not None and leaves.places:
            for index, arg in enumerate(given):
                leaf = leaves.places.get((id(node), index))
                if leaf is not None:
                    given[index] = SymbolicNumber(leaf, arg, self.reads)
        args = tuple(given)
        emit_launch(node, args, self._builder, self._place[1])
        return args

    def _call(self, node: AnyOp, f: Any, argument: Any) -> Any:
        """Call a closure. An exception keeps its type, and gets a note that says whose closure it was."""
        if not self._pure:
            self._leaves.forbid()
        enter_closure()
        try:
            return f(argument)
        except Exception as error:
            error.add_note(f"dagpu: in {_whose(node, f)} at {describe(node.origin)}")
            raise
        finally:
            leave_closure()

    def _host_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """What a function of `host_map` gets. It is called in every run of the plan, with this very object."""
        if not self._pure:
            self._leaves.forbid()
            return argument
        assert self._leaves.inputs is not None
        if not is_self_contained(node.f) or any(True for _ in handles_in(argument)):
            self._leaves.forbid()
        self.reads.update(self._leaves.inputs.numbers())  # the function may have any of them in its closure
        return self._without_standins(argument)

    def _without_standins(self, argument: Any) -> Any:
        if type(argument) is Items:
            return Items(tuple(map(self._without_standins, argument.items)))
        if has_arrays(argument):
            self._leaves.forbid()
        return without_standins(argument)

    def _placed(self, node: On[Any]) -> Placement:
        device, policy, _ = self._place
        place = node.place
        if isinstance(place, Device):
            return place, policy, True
        if isinstance(place, str):
            return self._find(place), policy, True
        if isinstance(place, Stream):
            return place.device, self._on_stream(place), True
        return device, self._number(place, id(place)), self._place[2]

    def _on_stream(self, stream: Stream) -> int:
        """The number of the policy that puts everything on one stream."""
        name = stream.device.name
        return self._number(OnStream(name, stream.lane), (name, stream.lane))

    def _number(self, policy: Any, key: Hashable) -> int:
        """The number of a policy in the program. By identity, which needs no hash; `_policies` keeps it alive."""
        number = self._policy_numbers.get(key)
        if number is None:
            number = self._policy_numbers[key] = len(self._policies)
            self._policies.append(policy)
        return number

    def _twice(self, node: AnyOp) -> MovedError:
        return MovedError(
            f"{node!r} is used twice in one run. Its result has one owner: say .shared() to give it to several, "
            "or build the op once for each use."
        )

    # ---- what is remembered: Shared and Unzip

    def _visit_once(self, node: Remembering, source: AnyOp) -> None:
        """Use what is remembered, or evaluate it, or leave it to the run that is at it already."""
        once = once_of(node)
        # What the function of a pipeline has made just now is remembered for nobody else, and what a `Shared` has
        # remembered before is a constant: these two are so in the next run too.
        if not self._pure or (once.number < self._began and (type(node) is Unzip or not once.remembers())):
            self._leaves.forbid()
        if self._memory.has(once):
            self._done.append(self._memory.again(node))
            return
        match once.claim(self):
            case "claimed":
                self._memory.begin(once)
                self._todo += (len(self._done), node, FINISH, source)
            case "done":
                self._done.append(self._takings.take(self._memory.recall(node, self._takings.may_undo), node))
            case "busy":
                later = Later(Foreign(node, self._place))
                self._suspended.append(later)
                self._done.append(later)

    def _await_components(self, node: Unzip[Any], made: Later) -> None:
        """The source's tuple is still to come: each component is an item of it, to be picked then."""
        split = node.split
        parts: list[Later] = []
        for index in range(split.n):
            later = Later(Suspended(Map(split.source, Item(index), node.origin), (made,), self._place))
            self._suspended.append(later)
            parts.append(later)
        self._memory.keep_split(split, parts, node.origin)
        self._done.append(self._memory.component(node))


def _whose(node: AnyOp, f: Any) -> str:
    """A closure, in words."""
    if type(f) is Pure:
        return f"pipeline {f.owner!r}, called"
    return f"the closure of .{'then' if isinstance(node, Then) else 'inspect' if isinstance(f, Inspect) else 'map'}"
