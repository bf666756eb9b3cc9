"""The check behind `check=True`: the result of a pipeline's plan, or a feed's update, beside that of a run from
scratch."""

from typing import Any, Final, cast, final

from dagpu.common.containers import values_in
from dagpu.common.errors import UpdateError
from dagpu.common.frozen import frozen
from dagpu.common.places import Origin, describe
from dagpu.handles import HandleState, Partition, SharedTensor, TensorMut, TensorRef, cut_of, live_state
from dagpu.handles.tensors import handles_in, map_handles
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Pure, Then, ToHost, Value, Zip, pipeline_numbers
from dagpu.ops.creation import Copy
from dagpu.ops.source_op import Source
from dagpu.runtime.execute import execute, run_unchecked
from dagpu.runtime.loaded_plan import Settings
from dagpu.runtime.plan_lookup import PlanCache
from dagpu.runtime.waits import Waits
from dagpu.tracing.compare_values import same_contents

AnyOp = DeviceOp[Any, Any, Any]


async def check_call(op: AnyOp, settings: Settings, waits: Waits, where: Origin) -> Any:
    """Run the call of a pipeline with the plan that serves it, and from scratch, on copies of what it owns or writes.
    Return the result of the first.

    Raises:
        UpdateError: they differ, in the result or in what the call has written.
    """
    assert isinstance(op, Then)
    assert isinstance(op.source, Value)
    assert isinstance(op.f, Pure)
    arguments, pipeline, runs = op.source.content, op.f, CheckedRuns(settings, waits, where)
    sources = [item for item in values_in(arguments) if isinstance(item, Source)]
    before = [source.revision for source in sources]
    written = runs.writable(arguments)
    copied, lenders = await runs.copies(arguments)
    written_again = runs.writable(copied)
    fresh = Pure(pipeline.f, next(pipeline_numbers), pipeline.name, PlanCache(1, None, of_pipeline=True))
    expected = await execute(Then(Value(copied, where), fresh, op.origin), settings, waits, where)
    found = await run_unchecked(op, settings, waits, where)
    if before == [source.revision for source in sources]:  # else one may have read newer values
        what = f"{pipeline!r}, called at {describe(op.origin)},"
        cure = "Make what it reads an argument, or a pipeline for each value of it; and give random numbers a seed"
        await runs.compare((found, written), (expected, written_again), f"{what} differs from a run from scratch", cure)
    del lenders
    return found


@final
@frozen
class CheckedRuns:
    """The runs of one check."""

    settings: Settings
    waits: Waits
    where: Origin

    async def compare(self, found: Any, expected: Any, differs: str, cure: str) -> None:
        """Compare two results bit for bit. `differs` is the beginning of the error.

        Raises:
            UpdateError: they differ, or cannot be compared.
        """
        one, other = await self._on_host(found), await self._on_host(expected)
        if not same_contents(one, other, f"check=True at {describe(self.where)}", _COMPARABLE):
            raise UpdateError(f"{differs}: {_CAUSES}. {cure}.")

    async def _on_host(self, value: Any) -> Any:
        """Return a value with arrays in place of its tensors."""
        handles = list(handles_in(value))
        arrays = iter(
            await self._run_all([ToHost(Value(self._lent(each), self.where), self.where) for each in handles])
        )
        return map_handles(lambda _: next(arrays), value)

    async def _run_all(self, ops: list[AnyOp]) -> tuple[Any, ...]:
        """Run several ops, and return their results."""
        op: AnyOp = Zip(tuple(ops), self.where)
        return cast("tuple[Any, ...]", await execute(op, self.settings, self.waits, self.where)) if ops else ()

    def writable(self, arguments: Any) -> list[Any]:
        """Return handles that read what is lent among the arguments for writing."""
        return [self._lent(each) for each in handles_in(arguments) if live_state(each).kind is TensorMut]

    async def copies(self, arguments: Any) -> tuple[Any, list[Any]]:
        """Return arguments with copies of the tensors that a run would use up or write, and the owners of those that
        are lent."""
        taken = [each for each in handles_in(arguments) if type(each) not in (SharedTensor, TensorRef)]
        made = iter(await self._run_all([Copy(self._lent(each), None, None, self.where) for each in taken]))
        lenders: list[Any] = []

        def copy_of(handle: Any) -> Any:
            if type(handle) is SharedTensor:
                return handle.clone()
            if type(handle) is TensorRef:
                return handle
            copy = next(made)
            if live_state(handle).kind is TensorMut:
                lenders.append(copy)
                copy = copy.borrow_mut()
            return Partition(live_state(copy), cut_of(handle)) if type(handle) is Partition else copy

        return map_handles(copy_of, arguments), lenders

    def _lent(self, handle: Any) -> Any:
        """Return a handle that reads the memory of another one, which stays as it is."""
        if type(handle) is SharedTensor:
            return handle.clone()
        state = live_state(handle)
        lender = handle if state.lender is None else state.lender
        return TensorRef(HandleState(TensorRef, state.storage, state.layout, self.where, lender))


_CAUSES: Final = "a function of it reads what it is not given, or an object that it is given was changed in place"
_COMPARABLE: Final = "Return arrays, numbers, texts, and tuples, lists and dicts of these"
