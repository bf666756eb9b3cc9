"""The evaluation of a DAG during a trace, with its nodes that remember values."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, assert_never, final

import numpy as np

from dagpu.common.containers import own_containers
from dagpu.common.errors import MovedError
from dagpu.common.places import Origin, add_note
from dagpu.handles import HANDLES, SharedTensor, TensorRef
from dagpu.handles.symbolic import replace_standins
from dagpu.handles.tensors import has_owning_handle, make_unwritable
from dagpu.ops.base import DeviceOp, has_op, refuse_op
from dagpu.ops.compose import (
    BUILT_IN,
    ByResults,
    ByTrace,
    Cut,
    Cutoff,
    HostCall,
    Inspect,
    Item,
    Launch,
    Map,
    On,
    Shared,
    Then,
    ToHost,
    Unzip,
    Value,
    Zip,
)
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.nodes import Node
from dagpu.ops.recording import RECORDER, recording_by
from dagpu.ops.single_flight import NOTHING, Once, once_numbers
from dagpu.ops.source_op import Source
from dagpu.plans.program import Cell
from dagpu.tracing.emit import (
    emit_alloc,
    emit_copy,
    emit_from_host,
    emit_graph_launch,
    emit_host_call,
    emit_launch,
    emit_to_host,
    library_work,
)
from dagpu.tracing.flattened import RememberedValue
from dagpu.tracing.live_inputs import LiveValue
from dagpu.tracing.own_plans import parts_with_plans
from dagpu.tracing.program_builder import ProgramBuilder
from dagpu.tracing.run_memo import (
    NOT_YET,
    PENDING,
    Deferred,
    ForeignSuspension,
    FromCell,
    FromItems,
    FromPart,
    PartOfOp,
    Remembering,
    RunMemo,
    SuspendedOp,
    Turns,
    argument_template,
    check_components,
    copy_for_consumer,
    is_plain_template,
    own_result_error,
    resolve,
    take_published,
)
from dagpu.tracing.sources import RunSources
from dagpu.tracing.traced_arguments import TracedArguments
from dagpu.tracing.undo_log import HandleTaker, Placements
from dagpu.tracing.user_code import Closures, describe_closure, not_an_op_error, reads_array
from dagpu.tracing.value_tokens import is_fixed

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]


@final
class _EvaluationMark:
    """A mark on the stack `todo`, which says how to read the entries below it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


FINISH: Final = _EvaluationMark("followed on the stack by a node and a height: the node's inputs are `done[height:]`")
FINISH_ROW: Final = _EvaluationMark("followed on the stack by a row, whose input is on top of `done`")
RESTORE: Final = _EvaluationMark("followed on the stack by a placement to restore")


class RememberingEvaluation:
    """The stacks of one run's evaluation, and the values that it remembers. `Evaluation` visits the nodes."""

    def __init__(
        self,
        op: AnyOp,
        places: Placements,
        builder: ProgramBuilder,
        leaves: TracedArguments,
        taker: HandleTaker,
        origin: Origin,
        sources: RunSources,
    ) -> None:
        self.origin = origin
        self.builder = builder
        self.stage = 0
        """The number of the stage that the builder is for."""
        self.leaves = leaves
        self.taker = taker
        self.todo: list[Any] = [op]
        self.done: list[Any] = []
        self.seen: set[AnyOp] = set()
        self.suspended: list[Deferred] = []
        """The values that wait for host data, or for another run."""
        self.resumed = 0
        """How many of them have been resumed."""
        self.cells: list[Deferred] = []
        """The values that the cells of this stage will hold."""
        self.shared_cells: dict[Once, Cell] = {}
        """The cells of this stage with the values of `Shared` nodes, as functions of `host_map` see them."""
        self.memo = RunMemo()
        self.parts: set[AnyOp] = set()
        """The parts of the op that run by plans of their own."""
        self.finds_parts = False
        """True if ops that closures make may have such parts too."""
        self.recorders: Any = None
        """Those who record the calls of the op for gradients; None while there is none."""
        self._places = places
        self._closures = Closures(leaves)
        self._sources = sources
        self._newest_before = next(once_numbers)

    # ---- remembered values: Shared and Unzip

    def _visit_remembered(self, node: Remembering, source: AnyOp) -> None:
        """Use the remembered value of a `Shared` or `Unzip`, evaluate it, or wait for the run that is evaluating it."""
        once = node.once
        in_each_run = type(node) is Unzip and node.split.in_each_run
        in_key = None if in_each_run else self.leaves.reach_remembered(once)
        private = in_each_run or self._sources.is_private(node)
        # A plan may be cached in three cases. The key has this use. A node that a pipeline's function has just made is
        # remembered for no other run. A value that a `Shared` has remembered before is a constant. All hold in the next
        # run too. A value that depends on sources is no constant: `is_stale` forbids the reuse.
        is_given = once.number < self._newest_before and (type(node) is Unzip or not once.remembers())
        if in_key is None and not private and (is_given or not self.leaves.pure):
            self.leaves.forbid_reuse()
        if in_key is not None and in_key.made_for and not private:  # another run may have replaced it since
            self._use(node, in_key.value, in_key.made_for, in_key)
        elif self.memo.is_deferred(once):
            self._suspend_until_made(node)
        elif self.memo.is_claimed(once):
            self.done.append(self.memo.use_again(node))
        elif private or self._claim(node, in_key):
            self.memo.start(once, private=private)
            self._sources.start(node)
            self.todo += (len(self.done), node, FINISH, source)

    def _claim(self, node: Remembering, in_key: RememberedValue | None) -> bool:
        """Claim the value of a node. Return false if this run has made it in an earlier stage, or another run has made
        it, so that it is used, or is making it, so that this use waits."""
        own = self.memo.published_value(node.once)
        if own is not None:
            self._use(node, *own, in_key)
            return False
        claim, value, made_for = self.memo.claims.take(node.once, self._sources.is_stale)
        if claim == "done":
            self._use(node, value, made_for, in_key)
        elif claim == "busy":
            self._suspend_until_made(node)
        return claim == "claimed"

    def _use(self, node: Remembering, value: Any, made_for: Mapping[Any, int], in_key: RememberedValue | None) -> None:
        """Use a value that is remembered, and that was made for these revisions of sources."""
        self._sources.used(node.once, made_for)
        self.done.append(self._published_value(node, value, in_key))

    def _published_value(self, node: Remembering, value: Any, in_key: RememberedValue | None) -> Any:
        """Return the value that an earlier run has made; of an `Unzip`, take the component. `in_key` is how the key has
        the value."""
        if type(node) is Unzip:
            return self.taker.take_handles(take_published(node, value, self.taker.undo_log.add), node)
        if in_key is not None and in_key.value is not NOTHING:
            return copy_for_consumer(self.taker.take_handles(value, node))
        # The copies are no leaves, also if a function has built this use of a node that is in the key too.
        return self.taker.take_handles(copy_for_consumer(value), node)

    def _suspend_until_made(self, node: Remembering) -> None:
        """Suspend a node whose value is being made. When the value exists, this use gets handles of its own to it."""
        deferred = Deferred(ForeignSuspension(node, self._places.current))
        if self.recorders is not None:
            deferred.call = self.recorders.open
        self.suspended.append(deferred)
        self.done.append(deferred)

    def _suspend_components(self, node: Unzip[Any], result: Deferred) -> None:
        """Suspend the components of an `Unzip` whose source's tuple does not exist yet. Each is an item of that
        tuple."""
        parts = [Deferred(FromPart(result, node, index)) for index in range(node.split.n)]
        self.suspended += parts
        self.memo.defer_components(node.split, parts)
        self.done.append(self.memo.take_component(node))


# ---- evaluate
#
# The evaluation of a DAG during a trace. It visits each node once, after the node's inputs, and uses no recursion.
#
# A chain of 100,000 ops must not reach the recursion limit. So `todo` holds nodes to evaluate and, marked by `FINISH`,
# nodes whose inputs are on top of `done`. A row of launches and built-in maps, each fed by the previous one, is
# evaluated as one piece; most nodes of a DAG are in such rows.
#
# The whole state of an evaluation is in its own stacks, so it can be suspended between two nodes. `run` and `resume`
# are generators, which yield before a call of a closure if the driver has asked for a turn. So a chain of a million
# closures does not block a trio loop.

_USED_AGAIN: Final = frozenset((Value, Shared, Source, Cutoff))
"""The nodes that check themselves how often they are used in one run."""

CALLING: Final = frozenset((Then, Map))
"""The nodes whose evaluation may call a function of the user's."""


def _feeding_op(op: AnyOp) -> AnyOp:
    """Return the op that feeds a row of built-in maps."""
    while type(op) is Map and type(op.f) in BUILT_IN:
        op = op.source
    return op


@final
class Evaluation(RememberingEvaluation):
    """The evaluation of one run's DAG. It emits instructions to `builder`, which is a new one for each stage."""

    def run(self, due: Callable[[], bool]) -> Turns[None]:
        """Evaluate everything on the stack. Yield None before a call of a closure if `due()` is true then, and the work
        of a library before a launch that waits for it, and each component that an earlier stage has left out."""
        todo, done, late = self.todo, self.done, self.memo.late
        while todo:
            node = todo.pop()
            if node is FINISH:
                node, below = todo.pop(), todo.pop()
                if type(node) in CALLING and due():
                    yield None
                inputs = tuple(done[below:])
                if type(node) is Launch and node.kernel.may_need_scratch:
                    work = library_work(node, inputs)
                    if work is not None:
                        yield work
                del done[below:]
                self._apply_node(node, inputs)
            elif node is FINISH_ROW:
                self._apply_row(todo.pop())
            elif node is RESTORE:
                self._places.current = todo.pop()
            else:
                self._visit_row(node)
                if late:
                    yield late.pop()

    def _visit_row(self, node: AnyOp) -> None:
        """Follow a row of launches and built-in maps with one input each up to the op that feeds the row, which is
        evaluated first.

        In most DAGs nearly all nodes are in such rows, and each of them saves two iterations of `run`.
        """
        row: list[Map[Any] | Launch] = []
        seen, parts, kind = self.seen, self.parts, type(node)
        while kind not in _USED_AGAIN and (not parts or node not in parts):
            if node in seen:
                raise self._used_twice_error(node)
            seen.add(node)
            if type(node) is Map and type(node.f) in BUILT_IN:
                row.append(node)
                node = node.source
            elif type(node) is Launch:
                ops = self._lazy_arguments(node)
                if len(ops) != 1 or node.kernel.may_need_scratch:
                    if row:
                        self.todo += (row, FINISH_ROW)
                    self.todo += (len(self.done), node, FINISH, *reversed(ops))
                    return
                row.append(node)
                node = ops[0]
            else:
                break
            kind = type(node)
        if row:
            self.todo += (row, FINISH_ROW)
        if type(node) is Then and isinstance(node.f, ByResults):
            self._count_folded(node.f)
        self._start_node(node)

    def _start_node(self, node: AnyOp) -> None:  # reason: the match has one case for each node
        """Evaluate a node without inputs, or put a node's inputs on the stack above it. A launch is in a row, or
        `_visit_row` has started it."""
        todo = self.todo
        if node in self.parts:
            self._defer_part(node)
            return
        match node:
            case Cutoff() if not self._sources.has_standins:
                todo.append(node.source)
            case Map() | Then() | ToHost() | HostCall() | Cutoff():
                todo += (len(self.done), node, FINISH, node.source)
            case Value():
                self.done.append(self._held_value(node))
            case Source():
                self.done.append(self._sources.value_of(node))
            case Alloc():
                seed = self.leaves.seed_of(node)
                self.done.append(emit_alloc(node, seed, self.builder, self._places.current[0], self._places.current[1]))
            case FromHost():
                leaf = None if self.leaves.inputs is None else self.leaves.inputs.array_leaves.get(id(node))
                self.done.append(
                    emit_from_host(node, leaf, self.builder, self._places.current[0], self._places.current[1])
                )
            case Copy():
                source, into = (
                    self.taker.take_handles(node.source, node),
                    self.taker.take_handles(node.into, node),
                )
                device, policy, chosen = self._places.current
                self.done.append(emit_copy(node, source, into, self.builder, device if chosen else None, policy))
            case GraphLaunch():
                emit_graph_launch(node, self.builder, self._places.policy_of_stream(node.captured.stream))
                self.leaves.graphs.append(node.captured)
                self.done.append(None)
            case Zip():
                todo += (len(self.done), node, FINISH, *reversed(node.sources))
            case On():
                todo += (self._places.current, RESTORE, node.source)
                self._places.enter(node)
            case Shared():
                self._visit_remembered(node, node.source)
            case Unzip():
                self._visit_remembered(node, node.split.source)
            case _:
                raise TypeError(
                    f"{node!r} is not an op of dagpu: the set of ops is closed. Build it from ops and kernels."
                )

    def _apply_row(self, row: list[Map[Any] | Launch]) -> None:
        """Replace the value on top of `done`, which feeds the last node of a row, by the value of the row's first
        node."""
        value = self.done.pop()
        while row:
            node = row.pop()
            if type(value) is Deferred and type(node) is Map and type(node.f) is Item:
                value = self._known_items(value)
            if type(value) is Deferred or type(value) is LiveValue:
                self._apply_node(node, (value,))
                value = self.done.pop()
            elif type(node) is Launch:
                value = self._launch_kernel(node, (value,))
            else:
                f: Any = node.f
                if type(value) is np.ndarray:
                    self.leaves.forbid_reuse(reads_array(node.origin))
                try:
                    value = f.apply(value, node.origin)
                except Exception as error:
                    add_note(error, f"dagpu: in {node!r}")
                    raise
        self.done.append(value)

    def _apply_node(self, node: Node, inputs: tuple[Any, ...]) -> None:
        """Evaluate a node on its inputs. Put its value on `done`, or put an op on `todo` whose value is the node's
        value."""
        if self._sources.has_standins or Deferred in map(type, inputs):
            ready = self._prepare_inputs(node, inputs)
            if ready is None:
                return
            inputs = ready
        builder, policy = self.builder, self._places.current[1]
        match node:
            case Launch():
                self.done.append(self._launch_kernel(node, inputs))
            case Map():
                self._apply_map(node, inputs[0])
            case Then():
                op = self._build_next(node, self._argument_of(node, inputs[0]))
                if not isinstance(op, DeviceOp):
                    raise not_an_op_error(node, op)
                self._sources.built(node, op)
                if self.finds_parts and self.recorders is None:  # a part that runs elsewhere would have no gradient
                    self.add_parts(op)
                self.todo.append(op)
            case ToHost():
                self.cells.append(emit_to_host(node, inputs[0], builder, policy))
                self.done.append(self.cells[-1])
            case HostCall():
                self.cells.append(self._call_on_host(node, inputs[0]))
                self.done.append(self.cells[-1])
            case Zip():
                self.done.append(inputs)
            case Shared():
                value = self.memo.record_shared(node, inputs[0])
                self._sources.finish(node, value, builder)
                self.done.append(value)
            case Unzip():
                self._sources.finish(node, inputs[0], builder)
                self.memo.record_components(node.split, inputs[0], node.origin)
                self.done.append(self.memo.take_component(node))
            case Value() | Alloc() | FromHost() | Copy() | On() | GraphLaunch() | Source() | Cutoff():
                raise AssertionError(f"{node!r} has no inputs to wait for")
            case _:
                assert_never(node)

    # ---- parts that run by plans of their own

    def add_parts(self, op: AnyOp) -> None:
        """Let the parts of an op that have plans of their own run by these. An op that a closure has made may be one
        itself."""
        self.parts |= parts_with_plans(Map(op, Inspect(id), None))

    def _defer_part(self, node: AnyOp) -> None:
        if type(node) not in _USED_AGAIN:
            if node in self.seen:
                raise self._used_twice_error(node)
            self.seen.add(node)
        self.leaves.forbid_reuse()
        deferred = Deferred(PartOfOp(node, self._places.current))
        self.suspended.append(deferred)
        self.done.append(deferred)

    def parts_to_run(self) -> list[Deferred]:
        """Return the parts that the run has met since, and whose values it needs. They are running from now on."""
        found: list[Deferred] = []
        for each in self.suspended:
            if type(each.cause) is PartOfOp and not each.cause.runs:
                each.cause.runs = True
                found.append(each)
        return found

    def placed_part(self, part: Deferred) -> AnyOp:
        """Return a part as an op of its own."""
        assert type(part.cause) is PartOfOp
        return self._places.placed(part.cause.node, part.cause.place)

    def finish_part(self, part: Deferred, value: Any, made_for: Mapping[Any, int]) -> None:
        """Record the value of a part, and the sources of which it was made."""
        assert type(part.cause) is PartOfOp
        self.parts.discard(part.cause.node)  # if it remembers the value, a further use finds it
        self._sources.ran(part.cause.node, made_for)
        self.taker.own(value)
        part.value = value

    def _prepare_inputs(self, node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the inputs as the node may see them, with the values that exist by now. None if nothing is left to do:
        the node is suspended until its inputs exist, or the run has a stand-in for its value."""
        if Deferred in map(type, inputs):
            inputs = tuple([resolve(item) for item in inputs])
            if Deferred in map(type, inputs) and self._suspend(node, inputs):
                return None
        if not self._sources.has_standins:
            return inputs
        inputs, result = self._sources.adapt(node, inputs, self.builder)
        if result is NOT_YET:
            return inputs
        self.done.append(result)
        return None

    def _known_items(self, value: Deferred) -> Any:
        """Return the tuple that a `zip_ops` gives to the one op that picks an item of it, also where the items do not
        exist yet; the value itself if it is no such tuple."""
        found = resolve(value)
        if type(found) is not Deferred or type(found.cause) is not FromItems:
            return found
        if self.suspended and self.suspended[-1] is found:
            self.suspended.pop()  # it would keep the other items
        return found.cause.items

    def _call_on_host(self, node: HostCall[Any], value: Any) -> Deferred:
        """Emit the call of a function of `host_map`, and return its value."""
        argument = self._closures.host_argument(node, argument_template(value, self._shared_cell))
        argument = self._sources.host_argument(argument, self.builder)
        return emit_host_call(node, argument, self.builder, *self._places.current[:2])

    def _shared_input(self, node: Shared[Any]) -> Any:
        """Return what a `Shared` shares as soon as it exists; `PENDING` if another run makes it, or a feed."""
        made = resolve(self.memo.claimed_value(node.once))
        if self._sources.has_standins or type(made) is not Deferred or type(made.cause) is not SuspendedOp:
            return PENDING
        return made.cause.inputs[0]

    def _shared_template(self, node: Shared[Any], depth: int = 0) -> Any:
        """Return the value of a `Shared` as the argument of a `HostCall`; `NOT_YET` if it is made of more than cells of
        this stage and plain values."""
        given = self._shared_input(node)
        template = NOT_YET if given is PENDING else argument_template(given, self._shared_template, depth)
        return template if is_plain_template(template) else NOT_YET

    def _shared_cell(self, node: Shared[Any], depth: int = 0) -> Cell:
        """Return the cell with such a value, as each of its consumers has it: no function writes its arrays."""
        if node.once not in self.shared_cells:
            share: HostCall[Any] = HostCall(Value(None, None), make_unwritable, node.origin)
            template = self._closures.host_argument(
                share, argument_template(self._shared_input(node), self._shared_cell, depth)
            )
            cell = emit_host_call(share, template, self.builder, *self._places.current[:2])
            self.shared_cells[node.once] = argument_template(cell, self._shared_cell)
        return self.shared_cells[node.once]

    def _apply_map(self, node: Map[Any], argument: Any) -> None:
        """Apply the function of a `Map`, which must return a value without ops in it."""
        if type(node.f) in BUILT_IN:
            self.done.append(argument)
            self._apply_row([node])
            return
        result = self._sources.call(self._closures, node, node.f, argument)
        if has_op(result):
            refuse_op(result, describe_closure(node, node.f))
        self.done.append(result)

    def _build_next(self, node: Then[Any], argument: Any) -> Any:
        """Call the function of a `Then`. While gradients record calls, those that the function makes are recorded."""
        f: Any = node.f
        call = self._sources.call if type(f) is not ByTrace else lambda closures, node, f, x: f.f(x, self)
        recorder = self.recorders.active() if self.recorders is not None else None
        if recorder is RECORDER.get():
            return call(self._closures, node, f, argument)
        with recording_by(recorder):
            return call(self._closures, node, f, argument)

    def _suspend(self, node: Node, inputs: tuple[Any, ...]) -> bool:
        """Suspend a node some of whose inputs do not exist yet. Return false if the node can use the inputs as they
        are."""
        match node:
            case Zip():
                deferred = Deferred(FromItems(inputs))
                self.suspended.append(deferred)
                self.done.append(deferred)
                return True
            case HostCall() if argument_template(inputs[0], self._shared_template) is not NOT_YET:
                return False
            case Unzip() if type(inputs[0].cause) is FromItems:
                return False
            case _:
                deferred = Deferred(SuspendedOp(node, inputs, self._places.current))
                if self.recorders is not None:
                    deferred.call = self.recorders.suspend(node)
                if isinstance(node, Shared):
                    self.memo.defer_shared(node.once, deferred)
                elif isinstance(node, Unzip):
                    self._suspend_components(node, inputs[0])
                    return True
                self.suspended.append(deferred)
                self.done.append(deferred)
                return True

    def resume(self, due: Callable[[], bool]) -> Turns[None]:
        """Resume the suspended nodes whose inputs exist now, until none is left that can be resumed. Yield as `run`
        does."""
        progress = True
        while progress:
            progress = False
            waiting, self.suspended = self.suspended, []
            for deferred in waiting:
                if (yield from self._try_resume(deferred, due)):
                    progress = True
                    self.resumed += 1
                else:
                    self.suspended.append(deferred)

    def _try_resume(self, deferred: Deferred, due: Callable[[], bool]) -> Turns[bool]:
        """Resolve a `Deferred` to its value, or to another `Deferred` that replaces it. Return false if its inputs do
        not exist yet."""
        match deferred.cause:
            case FromItems(items=items) | SuspendedOp(inputs=items):
                inputs = tuple([resolve(item) for item in items])
                if Deferred in map(type, inputs):
                    return False
                if type(deferred.cause) is FromItems:
                    deferred.value = inputs
                    return True
                assert type(deferred.cause) is SuspendedOp
                self._go_on_with(deferred.call)
                node, self._places.current = deferred.cause.node, deferred.cause.place
                # A plan calls the function of a `Map` in each run, with the arguments of that run.
                self._apply_node(node, replace_standins(inputs) if type(node) is Map else inputs)
            case ForeignSuspension(node=node, place=place):
                once = node.once
                if self.memo.is_deferred(once) or not (self.memo.is_claimed(once) or once.settled()):
                    return False
                self._go_on_with(deferred.call)
                self._places.current = place
                self.seen.discard(node)
                self.todo.append(node)
            case FromPart(whole=whole, node=node, index=index):
                result = resolve(whole)
                if type(result) is Deferred and type(result.cause) is not FromItems:
                    return False
                deferred.value = check_components(result, node.split.n, node.origin)[index]
                return True
            case FromCell():
                return False
            case PartOfOp():
                return deferred.value is not PENDING
        yield from self.run(due)
        self._go_on_with(None)
        value = resolve(self.done.pop())
        if value is deferred:
            raise own_result_error(self.origin)
        deferred.call = None
        deferred.value, deferred.cause = value, FromItems(())  # what the node was given would count as an output
        return True

    def _go_on_with(self, call: Any) -> None:
        """Let what is evaluated now belong to a call that a gradient records, or to none."""
        if self.recorders is not None:
            self.recorders.switch(call)

    # ---- one node

    def _held_value(self, node: Value[Any]) -> Any:
        """Return the value that a `Value` holds: a pipeline's arguments as stand-ins, handles moved out of the op, and
        containers of its own."""
        value, leaves = node.content, self.leaves
        if leaves.inputs is not None and id(node) in leaves.inputs.calls:
            return leaves.symbolic_arguments(node, lambda handle: self.taker.take_handles(handle, node))
        if type(value) is SharedTensor or type(value) is TensorRef:
            value = self.taker.take_handles(value, node)
        elif is_fixed(value):
            pass
        elif has_owning_handle(value):
            if node in self.seen:
                raise self._used_twice_error(node)
            self.seen.add(node)
            value = self.taker.take_handles(value, node)
        elif self.leaves.pure:
            value = own_containers(self.taker.take_handles(value, node))
        else:
            leaves.forbid_reuse()
            value = own_containers(value)
        return value

    def _lazy_arguments(self, node: Launch) -> list[AnyOp]:
        """Return the ops among the arguments of a launch. The handles among them are locked at once."""
        ops: list[AnyOp] = []
        args = node.args
        for index in node.kernel.open_places:
            arg = args[index]
            if isinstance(arg, DeviceOp):
                ops.append(arg)
            elif type(arg) in HANDLES:
                self.builder.lock_handle(arg)
        return ops

    def _launch_kernel(self, node: Launch, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Launch a kernel, with `inputs` for the ops among its arguments. Return the arguments."""
        arguments = list(node.args)
        if np.ndarray in map(type, inputs):
            self.leaves.forbid_reuse(reads_array(node.origin))
        used = 0
        for index in node.kernel.open_places:
            arg = arguments[index]
            if isinstance(arg, DeviceOp):
                arguments[index] = inputs[used]
                used += 1
            elif type(arg) in HANDLES:
                arguments[index] = self.taker.take_handles(arg, node)
        args = self.leaves.numbers_of(node, arguments)
        policy = self._places.current[1]
        over_mesh = bool(self._places.spread) and self._places.over_mesh(policy)
        emit_launch(node, args, self.builder, policy, over_mesh=over_mesh)
        return args

    def _argument_of(self, node: Then[Any], value: Any) -> Any:
        """Return the argument of a function of `then`: the source's value, and the numbers of a function of ours."""
        f: Any = node.f
        if type(f) is not ByResults or not f.numbers:
            return value
        return (*value, *self.leaves.numbers_of(node, f.numbers))

    def _count_folded(self, f: ByResults) -> None:
        """Count the ops that another one does the work of as used."""
        for op in f.folded:
            if op in self.seen:
                raise self._used_twice_error(op)
            self.seen.add(op)

    def _used_twice_error(self, node: AnyOp) -> MovedError:
        """Return the error for an op whose result is used twice in one run."""
        cure = "say .shared() to give it to several"
        if any(type(op) is Map and type(op.f) is Cut and _feeding_op(op) is node for op in self.seen):
            cure = "one use cuts it, to write to it: write to memory of its own there, empty(shape).partition(tile)"
        return MovedError(
            f"{node!r} is used twice in one run. Its result has one owner: {cure}, or build the op once for each use."
        )
