"""The state of an evaluation, and its nodes that remember values: `Shared` and `Unzip`."""

import threading
from typing import Any, Final, TypeAlias, final

from dagpu.common.origin import Origin
from dagpu.lowering.arguments.flattened import RememberedValue
from dagpu.lowering.arguments.traced_arguments import TracedArguments
from dagpu.lowering.tracing.deferred import Deferred, ForeignSuspension, FromPart
from dagpu.lowering.tracing.placements import Placements
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.run_memo import Remembering, RunMemo, copy_for_consumer, take_published
from dagpu.lowering.tracing.undo_log import HandleTaker
from dagpu.lowering.tracing.user_code import Closures
from dagpu.lowering.updates.run_sources import RunSources
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Unzip
from dagpu.ops.single_flight import NOTHING, once_numbers

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
        self.thread = threading.get_ident()
        """The thread that drives the run. Code that blocks this thread must not wait for the run."""
        self.origin = origin
        self.builder = builder
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
        self.memo = RunMemo()
        self.parts: set[AnyOp] = set()
        """The parts of the op that run by plans of their own."""
        self.finds_parts = False
        """True if ops that closures make may have such parts too."""
        self._places = places
        self._closures = Closures(leaves)
        self._sources = sources
        self._newest_before = next(once_numbers)

    # ---- remembered values: Shared and Unzip

    def _visit_remembered(self, node: Remembering, source: AnyOp) -> None:
        """Use the remembered value of a `Shared` or `Unzip`, evaluate it, or wait for the run that is evaluating it."""
        once = node.once
        if type(node) is Unzip and node.split.in_each_run:
            self._visit_private(node, source)
            return
        in_key = self.leaves.reach_remembered(once)
        if self._sources.is_private(node):
            self._visit_private(node, source)
            return
        # A plan may be cached in three cases. The key has this use. A node that a pipeline's function has just made is
        # remembered for no other run. A value that a `Shared` has remembered before is a constant. All hold in the next
        # run too. A value that depends on sources is no constant: `is_stale` forbids the reuse.
        if in_key is None and (
            not self.leaves.pure
            or (once.number < self._newest_before and (type(node) is Unzip or not once.remembers()))
        ):
            self.leaves.forbid_reuse()
        if in_key is not None and in_key.made_for:  # another run may have replaced it by that of another instant
            self._sources.used(once, in_key.made_for)
            self.done.append(self._published_value(node, in_key.value, in_key))
            return
        if self.memo.is_deferred(once):
            self._suspend_until_made(node)
            return
        if self.memo.is_claimed(once):
            self.done.append(self.memo.use_again(node))
            return
        own = self.memo.published_value(once)
        if own is not None:
            self._sources.used(once, own[1])
            self.done.append(self._published_value(node, own[0], in_key))
            return
        while (claim := once.claim(self)) == "done":
            value, made_for = once.remembered()
            if value is not NOTHING and not (made_for and self._sources.is_stale(made_for)):
                self._sources.used(once, made_for)
                self.done.append(self._published_value(node, value, in_key))
                return
            once.expire(value)
        if claim == "busy":
            self._suspend_until_made(node)
            return
        self.memo.start_claim(once)
        self._sources.start(node)
        self.todo += (len(self.done), node, FINISH, source)

    def _published_value(self, node: Remembering, value: Any, in_key: RememberedValue | None) -> Any:
        """Return the value that an earlier run has made; of an `Unzip`, take the component. `in_key` is how the key has
        the value."""
        if type(node) is Unzip:
            return self.taker.take_handles(take_published(node, value, self.taker.undo_log.add), node)
        if in_key is not None and in_key.value is not NOTHING:
            return copy_for_consumer(self.taker.take_handles(value, node))
        # The copies are no leaves, also if a function has built this use of a node that is in the key too.
        return self.taker.take_handles(copy_for_consumer(value), node)

    def _visit_private(self, node: Remembering, source: AnyOp) -> None:
        """Use the value of a `Shared` or `Unzip` that this run evaluates for itself alone."""
        once = node.once
        if self.memo.is_deferred(once):
            self._suspend_until_made(node)
        elif self.memo.is_claimed(once):
            self.done.append(self.memo.use_again(node))
        else:
            self.memo.start_private(once)
            self._sources.start(node)
            self.todo += (len(self.done), node, FINISH, source)

    def _suspend_until_made(self, node: Remembering) -> None:
        """Suspend a node whose value is being made. When the value exists, this use gets handles of its own to it."""
        deferred = Deferred(ForeignSuspension(node, self._places.current))
        self.suspended.append(deferred)
        self.done.append(deferred)

    def _suspend_components(self, node: Unzip[Any], result: Deferred) -> None:
        """Suspend the components of an `Unzip` whose source's tuple does not exist yet. Each is an item of that
        tuple."""
        parts = [Deferred(FromPart(result, node, index)) for index in range(node.split.n)]
        self.suspended += parts
        self.memo.defer_components(node.split, parts)
        self.done.append(self.memo.take_component(node))
