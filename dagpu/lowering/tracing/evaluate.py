"""The evaluation of a DAG during a trace: it visits each node once, after its inputs, and uses no recursion.

A chain of 100,000 ops must not meet the recursion limit: `todo` holds nodes to evaluate and, behind `FINISH`, nodes
whose inputs are on top of `done`. A row of launches and built-in maps, each fed by the one before, is evaluated as one
piece; most nodes of a DAG are in such rows.

The whole state of a walk is in its own stacks, so it can be suspended between two nodes: `run` and `resume` are
generators, which yield before a call of a closure where the driver has asked for a turn. So a chain of a million
closures does not block a trio loop.
"""

import threading
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, assert_never, final

from dagpu.common.errors import MovedError
from dagpu.common.origin import Origin, describe
from dagpu.handles import HANDLES, SharedTensor, TensorRef
from dagpu.handles.handle_trees import moves
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.lowering.arguments.cache_key import is_fixed
from dagpu.lowering.arguments.traced_arguments import TracedArguments
from dagpu.lowering.tracing.deferred import (
    NOT_YET,
    Deferred,
    ForeignSuspension,
    FromCell,
    FromItems,
    FromPart,
    SuspendedOp,
    resolved,
    template,
)
from dagpu.lowering.tracing.emit import (
    emit_alloc,
    emit_copy,
    emit_from_host,
    emit_graph_launch,
    emit_host_call,
    emit_launch,
    emit_to_host,
)
from dagpu.lowering.tracing.placements import Placements
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.run_memo import Remembering, RunMemo, components, once_of, own_result
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.lowering.tracing.user_code import Closures, whose
from dagpu.ops.base import DeviceOp, has_op, refuse_op
from dagpu.ops.compose import BUILT_IN, Cut, HostCall, Map, On, Pure, Shared, Then, ToHost, Unzip, Value, Zip
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.launch import Launch
from dagpu.ops.nodes import Node
from dagpu.ops.single_flight import newest

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]


@final
class _EvaluationMark:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


FINISH: Final = _EvaluationMark("the inputs of the node below are done: what `done` has above the height below that")
FINISH_ROW: Final = _EvaluationMark("the input of the row below is done")
RESTORE: Final = _EvaluationMark("the placement below holds again")

CALLING: Final = frozenset((Then, Map))
"""The nodes whose evaluation may call a function of the user's."""


def _whole(op: AnyOp) -> AnyOp:
    """The op that feeds a row of built-in maps."""
    while type(op) is Map and type(op.f) in BUILT_IN:
        op = op.source
    return op


@final
class Evaluation:
    """One run's way over its DAG. What it emits goes to `builder`, which is a new one for each stage."""

    def __init__(
        self,
        op: AnyOp,
        places: Placements,
        builder: ProgramBuilder,
        leaves: TracedArguments,
        takings: UndoLog,
        origin: Origin,
    ) -> None:
        self.thread = threading.get_ident()
        """The thread that drives the run. Code that blocks this thread must not wait for the run."""
        self.origin = origin
        self.builder = builder
        self.leaves = leaves
        self.takings = takings
        self.todo: list[Any] = [op]
        self.done: list[Any] = []
        self.seen: set[AnyOp] = set()
        self.suspended: list[Deferred] = []
        """The values that wait for data of the host, or for another run."""
        self.cells: list[Deferred] = []
        """The values that the cells of this stage will hold."""
        self.memory = RunMemo()
        self._places = places
        self._closures = Closures(leaves)
        self._began = newest()

    def run(self, due: Callable[[], bool]) -> Generator[None, None, None]:
        """Evaluate all that is on the stack. Yields before a closure is called if `due()` is true then."""
        todo, done = self.todo, self.done
        while todo:
            node = todo.pop()
            if node is FINISH:
                node, below = todo.pop(), todo.pop()
                if type(node) in CALLING and due():
                    yield
                inputs = tuple(done[below:])
                del done[below:]
                self._apply(node, inputs)
            elif node is FINISH_ROW:
                self._apply_row(todo.pop())
            elif node is RESTORE:
                self._places.now = todo.pop()
            else:
                self._visit(node)

    def _visit(self, node: AnyOp) -> None:
        """Follow a row of launches and built-in maps with one input each up to the op that feeds it; that op comes
        first.

        In most DAGs nearly all nodes are in such a row, and each of them saves two turns of `run`.
        """
        row: list[Map[Any] | Launch] = []
        seen, kind = self.seen, type(node)
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
            self.todo += (row, FINISH_ROW)
        self._begin(node)

    def _begin(self, node: AnyOp) -> None:  # reason: one case a node is what makes it total
        """Evaluate a leaf, or put a node's inputs on the stack before it."""
        todo = self.todo
        match node:
            case Launch():
                todo += (len(self.done), node, FINISH, *reversed(self._lazy_arguments(node)))
            case Map() | Then() | ToHost() | HostCall():
                todo += (len(self.done), node, FINISH, node.source)
            case Value():
                self.done.append(self._value(node))
            case Alloc():
                seed = self.leaves.seed_of(node)
                self.done.append(emit_alloc(node, seed, self.builder, self._places.now[0], self._places.now[1]))
            case FromHost():
                leaf = None if self.leaves.inputs is None else self.leaves.inputs.arrays.get(id(node))
                self.done.append(emit_from_host(node, leaf, self.builder, self._places.now[0], self._places.now[1]))
            case Copy():
                source, into = self.takings.take(node.source, node), self.takings.take(node.into, node)
                device, policy, chosen = self._places.now
                self.done.append(emit_copy(node, source, into, self.builder, device if chosen else None, policy))
            case GraphLaunch():
                emit_graph_launch(node, self.builder, self._places.on_stream(node.captured.stream))
                self.leaves.graphs.append(node.captured)
                self.done.append(None)
            case Zip():
                todo += (len(self.done), node, FINISH, *reversed(node.sources))
            case On():
                todo += (self._places.now, RESTORE, node.source)
                self._places.now = self._places.inside(node)
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
        value = self.done.pop()
        while row:
            node = row.pop()
            if type(value) is Deferred:
                self._apply(node, (value,))
                value = self.done.pop()
            elif type(node) is Launch:
                value = self._launch(node, (value,))
            else:
                f: Any = node.f
                try:
                    value = f.apply(value, node.origin)
                except Exception as error:
                    error.add_note(f"dagpu: in the op built at {describe(node.origin)}")
                    raise
        self.done.append(value)

    def _apply(self, node: Node, inputs: tuple[Any, ...]) -> None:
        """Give the node its inputs: its value goes on `done`, or an op on `todo` whose value will."""
        if Deferred in map(type, inputs):
            inputs = tuple(resolved(item) for item in inputs)
            if Deferred in map(type, inputs) and self._wait(node, inputs):
                return
        builder, (device, policy, _) = self.builder, self._places.now
        match node:
            case Launch():
                self.done.append(self._launch(node, inputs))
            case Map():
                self._map(node, inputs[0])
            case Then():
                op = self._closures.call(node, node.f, inputs[0])
                if not isinstance(op, DeviceOp):
                    raise self._no_op(node, op)
                self.todo.append(op)
            case ToHost():
                self._later(emit_to_host(node, inputs[0], builder, policy))
            case HostCall():
                argument = self._closures.host_argument(node, template(inputs[0]))
                self._later(emit_host_call(node, argument, builder, device, policy))
            case Zip():
                self.done.append(inputs)
            case Shared():
                self.done.append(self.memory.keep_shared(node, inputs[0]))
            case Unzip():
                self.memory.keep_split(node.split, inputs[0], node.origin)
                self.done.append(self.memory.component(node))
            case Value() | Alloc() | FromHost() | Copy() | On() | GraphLaunch():
                raise AssertionError(f"{node!r} has no inputs to wait for")
            case _:
                assert_never(node)

    def _map(self, node: Map[Any], argument: Any) -> None:
        if type(node.f) in BUILT_IN:
            self.done.append(argument)
            self._apply_row([node])
            return
        made = self._closures.call(node, node.f, argument)
        if has_op(made):
            refuse_op(made, whose(node, node.f))
        self.done.append(made)

    def _wait(self, node: Node, inputs: tuple[Any, ...]) -> bool:
        """Some inputs are still to come: suspend the node. False if it can do with what there is."""
        match node:
            case Zip():
                later = Deferred(FromItems(inputs))
                self.suspended.append(later)
                self.done.append(later)
                return True
            case HostCall() if template(inputs[0]) is not NOT_YET:
                return False
            case Unzip() if type(inputs[0].cause) is FromItems:
                return False
            case _:
                later = Deferred(SuspendedOp(node, inputs, self._places.now))
                if isinstance(node, Shared):
                    self.memory.put_off(node.once, later)
                elif isinstance(node, Unzip):
                    self._await_components(node, inputs[0])
                    return True
                self.suspended.append(later)
                self.done.append(later)
                return True

    def _later(self, later: Deferred) -> None:
        self.cells.append(later)
        self.done.append(later)

    def resume(self, due: Callable[[], bool]) -> Generator[None, None, None]:
        """Go on with every suspended node whose inputs have come, until none is left that can. Yields as `run` does."""
        progress = True
        while progress:
            progress = False
            waiting, self.suspended = self.suspended, []
            for later in waiting:
                if (yield from self._go_on(later, due)):
                    progress = True
                else:
                    self.suspended.append(later)

    def _go_on(self, later: Deferred, due: Callable[[], bool]) -> Generator[None, None, bool]:
        """Give a `Deferred` its value, or its replacement, another `Deferred`, once its inputs have come."""
        match later.cause:
            case FromItems(items=items) | SuspendedOp(inputs=items):
                inputs = tuple([resolved(item) for item in items])
                if Deferred in map(type, inputs):
                    return False
                if type(later.cause) is FromItems:
                    later.value = inputs
                    return True
                assert type(later.cause) is SuspendedOp
                self._places.now = later.cause.place
                self._apply(later.cause.node, inputs)
            case ForeignSuspension(node=node, place=place):
                once = once_of(node)
                if self.memory.waits(once) or (not once.settled() and once.owner is not self):
                    return False
                self._places.now = place
                self.seen.discard(node)
                self.todo.append(node)
            case FromPart(whole=whole, node=node, index=index):
                made = resolved(whole)
                if type(made) is Deferred and type(made.cause) is not FromItems:
                    return False
                later.value = components(made, node.split.n, node.origin)[index]
                return True
            case FromCell():
                return False
        yield from self.run(due)
        value = resolved(self.done.pop())
        if value is later:
            raise own_result(self.origin)
        later.value = value
        return True

    # ---- one node

    def _value(self, node: Value[Any]) -> Any:
        held, leaves = node.held, self.leaves
        if leaves.inputs is not None and id(node) in leaves.inputs.starts:
            start = leaves.inputs.starts[id(node)]
            return leaves.arguments(held, start, lambda handle: self.takings.take(handle, node))
        if type(held) is SharedTensor or type(held) is TensorRef:
            self.takings.keep(held, node)
        elif is_fixed(held):
            pass
        elif moves(held):
            if node in self.seen:
                raise self._twice(node)
            self.seen.add(node)
            held = self.takings.take(held, node)
        elif self.leaves.pure:
            held = self.takings.take(held, node)
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
                self.builder.claim(arg)
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
                given[index] = self.takings.take(arg, node)
        leaves = self.leaves.inputs
        if leaves is not None and leaves.places:
            for index in range(len(given)):
                leaf = leaves.places.get((id(node), index))
                if leaf is not None:
                    given[index] = SymbolicNumber(leaf, leaves.leaves[leaf], self.leaves.reads)
        args = tuple(given)
        emit_launch(node, args, self.builder, self._places.now[1])
        return args

    def _no_op(self, node: Then[Any], made: object) -> TypeError:
        cure = "Return an op (value(x) makes one of a value)" + ("" if type(node.f) is Pure else ", or use .map")
        return TypeError(f"{whose(node, node.f)} gave {made.__class__.__name__}, no op. {cure}.")

    def _twice(self, node: AnyOp) -> MovedError:
        cure = "say .shared() to give it to several"
        if any(type(op) is Map and type(op.f) is Cut and _whole(op) is node for op in self.seen):
            cure = "one use cuts it, to write to it: write to memory of its own there, empty(shape).partition(tile)"
        return MovedError(
            f"{node!r} is used twice in one run. Its result has one owner: {cure}, or build the op once for each use."
        )

    # ---- what is remembered: Shared and Unzip

    def _visit_once(self, node: Remembering, source: AnyOp) -> None:
        """Use what is remembered, or evaluate it, or leave it to the run that is at it already."""
        once = once_of(node)
        # What the function of a pipeline has made just now is remembered for nobody else, and what a `Shared` has
        # remembered before is a constant: these two are so in the next run too.
        if not self.leaves.pure or (once.number < self._began and (type(node) is Unzip or not once.remembers())):
            self.leaves.forbid()
        if self.memory.waits(once):
            self._come_back(node)
            return
        if self.memory.has(once):
            self.done.append(self.memory.again(node))
            return
        match once.claim(self):
            case "claimed":
                self.memory.begin(once)
                self.todo += (len(self.done), node, FINISH, source)
            case "done":
                self.done.append(self.takings.take(self.memory.recall(node, self.takings.may_undo), node))
            case "busy":
                self._come_back(node)

    def _come_back(self, node: Remembering) -> None:
        """Its value is being made: when it is there, this taker gets his own handles to it."""
        later = Deferred(ForeignSuspension(node, self._places.now))
        self.suspended.append(later)
        self.done.append(later)

    def _await_components(self, node: Unzip[Any], made: Deferred) -> None:
        """The source's tuple is still to come: each component is an item of it, to be picked then."""
        parts = [Deferred(FromPart(made, node, index)) for index in range(node.split.n)]
        self.suspended += parts
        self.memory.put_off_split(node.split, parts)
        self.done.append(self.memory.component(node))
