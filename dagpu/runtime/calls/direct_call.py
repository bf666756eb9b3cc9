"""The direct call of a plan: from the inputs of a run to its result in one function, which is written for the plan.

The general way looks a plan up, binds, locks, moves and submits, and each step makes an object for the next one. A
direct call does the same in straight-line code (dagpu.lowering.arguments.call_text), under two rules:

- Guards come first. A call that a guard refuses has no effect; the general way runs it then.
- It reports nothing itself. For memory that is locked, moved or lost, and for numbers that do not fit, the general way
  raises the error.

The environment variable DAGPU_DIRECT=0 turns direct calls off.
"""

import linecache
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import Any, Final, Protocol, final

from dagpu.common.origin import Origin
from dagpu.lowering.arguments.call_guard import guard_call
from dagpu.lowering.arguments.call_text import CallText
from dagpu.lowering.arguments.dag_guard import guard_dag
from dagpu.lowering.arguments.exact_tokens import exact_token
from dagpu.lowering.arguments.flattened import Flattened
from dagpu.lowering.reuse.result_parts import result_expression
from dagpu.lowering.reuse.signature import Signature
from dagpu.ops.base import DeviceOp, attach_plans
from dagpu.runtime.calls.direct_call_body import DirectCallBody
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.settings import Settings

OFTEN: Final = 6
"""The number of runs of a plan after which the call of a plain op is written: to write it takes as long as ten runs
save, and most ops run a few times."""

_LONGEST: Final = 400
"""The most lines of a text. The general way runs calls with more inputs."""

_FEW_NODES: Final = 40
"""The most nodes of an op whose text is written after `OFTEN` runs. It takes some ten milliseconds to write that of a
larger one."""

VERY_OFTEN: Final = 100
"""The number of runs after which the text of a larger op is written."""

_LONGEST_DAG: Final = 1500
"""The most lines of the text of a larger op."""

_TEXTS: Final = 256
"""The most texts whose code is kept for further plans of the same structure."""


class CallNow(Protocol):
    """Makes a call, and blocks this thread until its result is complete. Returns `MISS` if the general way must run it.

    Raises:
        DeviceError: the run could not be started, or failed.
    """

    def __call__(self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin) -> Any: ...


class CallInTask(Protocol):
    """Makes a call, and suspends the trio task until its result is complete; see `CallNow`.

    The other tasks have their turn while the device works. So the call looks for its end only after that.
    """

    def __call__(
        self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin
    ) -> Coroutine[Any, Any, Any]: ...


@final
class DirectCall:
    """The direct call of one plan, for threads and for tasks. It does not refer to the `LoadedPlan`, which holds it."""

    __slots__ = ("_write_in_task", "constants", "made_in_task", "now", "text")

    def __init__(self, text: str, write_in_task: Callable[[], str], constants: dict[str, object]) -> None:
        self.text = text
        """The text of the function `now`."""
        self._write_in_task = write_in_task
        """Writes the text of the function `in_task`."""
        self.constants = constants
        """The objects that both functions close over, by their names in the texts."""
        self.now: CallNow = _make(text, constants)
        self.made_in_task: CallInTask | None = None
        """The call in a task; None until the first use of `in_task`."""

    @property
    def in_task(self) -> CallInTask:
        """The call in a task. Its text is written and compiled at the first use."""
        found = self.made_in_task
        if found is None:
            found = self.made_in_task = _make(self._write_in_task(), self.constants)
        return found


def _make(text: str, constants: dict[str, object]) -> Any:
    """Return the function of a text, which closes over these constants."""
    scope: dict[str, Any] = {}
    exec(_compiled(text), scope)
    return scope["make"](**constants)


@lru_cache(maxsize=_TEXTS)
def _compiled(text: str) -> CodeType:
    """Compile a text. Tracebacks and debuggers find its lines under a file name in the folder of this module."""
    name = f"{__file__.removesuffix('direct_call.py')}<direct call {hash(text) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")


def write_direct_call(loaded: LoadedPlan, arguments: Any, named: Any, inputs: Flattened) -> None:
    """Give a plan the direct call of its pipeline's calls, unless it has one or can have none. `arguments` and `named`
    are those of a call that the plan serves, and `inputs` has its leaves."""
    signature = loaded.signature
    if loaded.direct_is_known or signature is None:
        return
    guard = guard_call(arguments, named, inputs.leaves, signature.leaf_bindings(len(inputs.leaves)))
    text = CallText()
    if guard is not None:
        guard.write(text)
        if _write_rest(text, loaded, signature):
            loaded.direct = _finished(text, loaded)
    loaded.direct_is_known = True


def write_fresh_call(loaded: LoadedPlan, op: DeviceOp[Any, Any, Any], inputs: Flattened) -> None:
    """Give a plan the direct call of ops of the structure of `op`, unless it has one or can have none. `inputs` has the
    leaves of `op`. The argument of the call is the op."""
    signature = loaded.signature
    is_large = len(inputs.nodes) > _FEW_NODES
    if loaded.fresh_is_known or signature is None or (is_large and loaded.runs < VERY_OFTEN):
        return
    text = CallText()
    leaves = inputs.leaves
    if guard_dag(text, op, leaves, signature.leaf_bindings(len(leaves))) and _write_rest(text, loaded, signature):
        after = []
        if not (inputs.changeable or signature.moves):  # the next run of this op object needs no guard
            attach = text.function_name(attach_plans)
            after.append(f"{attach}(arguments, ((loaded, [{', '.join(text.leaves)}]),))")
        loaded.fresh = _finished(text, loaded, after, _LONGEST_DAG if is_large else _LONGEST)
    loaded.fresh_is_known = True


def _write_rest(text: CallText, loaded: LoadedPlan, signature: Signature) -> bool:
    """Write the lines after those of a guard. Return False if the plan can have no direct call."""
    for index, token in loaded.fixed:
        exact, fixed = text.function_name(exact_token), text.constant("FIXED", token)
        text.refuse_if(f"{exact}({text.leaves[index]}) != {fixed}")
    return signature.write_rest(text)


def write_call_again(loaded: LoadedPlan, leaves: Sequence[Any]) -> None:
    """Give a plan the direct call of runs whose leaves fit, unless it has one or can have none: of the same
    op, or of a graph. The leaves are the arguments of the call. `leaves` are those of one run."""
    signature = loaded.signature
    if loaded.again_is_known or signature is None:
        return
    text = CallText()
    text.leaves += [f"a{index}" for index in range(len(leaves))]
    if leaves:
        text.lines.append(f"{', '.join(text.leaves)}, = arguments")
    if signature.write_again(text, leaves):
        loaded.again = _finished(text, loaded)
    loaded.again_is_known = True


def write_update_call(
    loaded: LoadedPlan,
    text: CallText,
    cells: int,
    publish: Sequence[str],
    build: Callable[[], Any],
    *,
    decides: bool = False,
) -> None:
    """Give the plan of an update its direct call, unless it would be too long. `text` binds the inputs in a memory of
    this number of `cells`. The lines `publish` take over what is in `memory`, and `build` returns the value then: at
    the end, if the plan `decides` what it runs. A run that fails leaves a `LoadedPlan.failed_run`."""
    loaded.again_is_known = True
    if len(text.lines) + len(text.locks) + len(text.cells) + len(publish) <= _LONGEST:
        result = f"{text.constant('BUILD', build)}()"
        loaded.again = _direct_call(
            DirectCallBody(text, loaded, cells, result, publish, is_update=True, decides=decides)
        )


def _finished(
    text: CallText, loaded: LoadedPlan, after: Sequence[str] = (), longest: int = _LONGEST
) -> DirectCall | None:
    """Return the direct call with these guards; None if its text would be too long. The lines `after` come between the
    end of the run and the result."""
    if len(text.lines) + len(text.locks) > longest:
        return None
    signature = loaded.signature
    assert signature is not None
    result = result_expression(signature.result, text)
    if result is None:
        leaves = ", ".join(text.leaf_in_run(index) for index in range(len(text.leaves)))
        result = f"{text.constant('RESULT', signature.result)}(memory, [{leaves}])"
    return _direct_call(DirectCallBody(text, loaded, signature.buffers, result, after))


def _direct_call(body: DirectCallBody) -> DirectCall:
    """Return the direct call with this body."""
    return DirectCall(body.write(in_task=False), partial(body.write, in_task=True), body.constants)
