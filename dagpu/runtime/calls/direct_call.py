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

from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from dagpu.backends.protocol import COMPLETED, Bindings, Replay
from dagpu.common.critical import BOOKKEEPING, INTERRUPT
from dagpu.common.origin import Origin
from dagpu.lowering.arguments.call_guard import guard_call
from dagpu.lowering.arguments.call_text import CallText, HandleNames
from dagpu.lowering.arguments.dag_guard import guard_dag
from dagpu.lowering.arguments.exact_tokens import exact_token
from dagpu.lowering.arguments.flattened import Flattened
from dagpu.lowering.reuse.result_template import result_expression
from dagpu.lowering.reuse.signature import Signature
from dagpu.lowering.tracing.undo_log import TAKEN
from dagpu.ops.base import DeviceOp, attach_plans
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.run_call import raise_failures, settle
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.waiting import BlockingWaits, TrioWaits, drive

_blocking: Final = BlockingWaits()

_FEW_CELLS: Final = 16
"""The most buffers whose list is written out."""

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

    __slots__ = ("_in_task", "_write_in_task", "constants", "now", "text")

    def __init__(self, text: str, write_in_task: Callable[[], str], constants: dict[str, object]) -> None:
        self.text = text
        """The text of the function `now`."""
        self._write_in_task = write_in_task
        """Writes the text of the function `in_task`."""
        self.constants = constants
        """The objects that both functions close over, by their names in the texts."""
        self.now: CallNow = _make(text, constants)
        self._in_task: CallInTask | None = None

    @property
    def in_task(self) -> CallInTask:
        """The call in a task. Its text is written and compiled at the first use."""
        found = self._in_task
        if found is None:
            found = self._in_task = _make(self._write_in_task(), self.constants)
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
    loaded: LoadedPlan, text: CallText, cells: int, publish: Sequence[str], build: Callable[[], Any]
) -> None:
    """Give the plan of an update its direct call, unless it would be too long. `text` binds the inputs in a memory of
    this number of `cells`. The lines `publish` take over what is in `memory`, and `build` returns the value then."""
    loaded.again_is_known = True
    if len(text.lines) + len(text.locks) + len(text.cells) + len(publish) <= _LONGEST:
        result = f"{text.constant('BUILD', build)}()"
        loaded.again = _direct_call(_Body(text, loaded, cells, result, publish))


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
    return _direct_call(_Body(text, loaded, signature.buffers, result, after))


def _direct_call(body: "_Body") -> DirectCall:
    """Return the direct call with this body."""
    return DirectCall(body.write(in_task=False), partial(body.write, in_task=True), body.constants)


@final
class _Body:
    """Writes the functions of a direct call around the guards of its text."""

    def __init__(
        self, text: CallText, loaded: LoadedPlan, cells: int, result: str, publish: Sequence[str] = ()
    ) -> None:
        """`cells` is the number of the plan's buffers and cells, `result` the expression of the result, before which
        come the lines `publish`."""
        memory = [text.cells.get(buffer, "None") for buffer in range(cells)]
        self._text = text
        self._result = result
        self._publish = publish
        self.constants = text.constants
        if len(memory) <= _FEW_CELLS:
            self._memory = [f"memory = [{', '.join(memory)}]"]
        else:
            bound = [f"memory[{cell}] = {name}" for cell, name in text.cells.items()]
            self._memory = [f"memory = [None] * {len(memory)}", *bound]
        text.constants.update(
            BINDINGS=Bindings, CANCELLED=checkpoint_if_cancelled, COMPLETED=COMPLETED, END=_end, FINISH=_finish,
            GATE=BOOKKEEPING, INTERRUPT=INTERRUPT, RAISE=raise_failures, SETTLE=settle,
            SUBMIT=loaded.prepared.submit, TAKEN=TAKEN, TURN=cancel_shielded_checkpoint, WAITS=TrioWaits,
        )  # fmt: skip
        launch = loaded.prepared.launch_again
        self._launches = launch is not None
        """True if the plan may run by one launch of a graph."""
        if launch is not None:
            text.constants["LAUNCH"] = launch

    def write(self, *, in_task: bool) -> str:
        """Return the text of a function that makes the functions, with the constants as arguments."""
        lines = [f"def make({', '.join(self._text.constants)}):", *_indented(self._function(in_task), 1)]
        return "\n".join([*lines, "    return call", ""])

    def _function(self, in_task: bool) -> list[str]:
        refuse = "return MISS"
        if in_task:
            head = ["async def call(loaded, arguments, named, settings, origin):", "    await CANCELLED()"]
        else:
            head = ["def call(loaded, arguments, named, settings, origin):"]
        return [
            *head,
            "    # ---- is it a call of this plan?",
            *_indented(self._text.lines, 1),
            "    # ---- may it run now?",
            f"    if settings is not loaded.settings and not loaded.suits(settings): {refuse}",
            "    graph = loaded.runs + 1 >= loaded.graph_from",
            f"    if not (loaded.graph_is_ready if graph else loaded.is_compiled): {refuse}",
            *([] if in_task else [f"    if INTERRUPT.raised is not None: {refuse}"]),
            "    # ---- the run",
            "    replay = None",
            "    begun = False",
            "    try:",
            *_indented(self._begin(), 2),
            "        loaded.runs += 1",
            *_indented([*self._memory, *self._run(in_task), *self._publish, f"return {self._result}"], 2),
            "    except BaseException:",
            "        if replay is not None: END(replay)",
            *[f"        elif begun: {'; '.join(undo)}" for undo in [self._undo()] if undo],
            "        raise",
            *(["    finally:", f"        if begun: {'; '.join(self._unlock())}"] if self._text.locks else []),
        ]  # fmt: skip

    def _run(self, in_task: bool) -> list[str]:
        """Return the lines that submit the work and wait for it. They return the result if they have built it.

        A launch has given memory to all outputs, so the result is built while the device works. A failure drops it.
        """
        lines = ["spin = loaded.spin if settings.spin is None else settings.spin"]
        early = "0.0" if in_task else "spin"
        submit = f"replay = SUBMIT(BINDINGS(memory), {early}, graph=graph)"
        pace = "None if settings.spin is not None else loaded.pace"
        settle = (
            f"await SETTLE(replay, WAITS(), spin, {pace})" if in_task else "if replay is not COMPLETED: FINISH(replay)"
        )
        if not self._launches:
            return [*lines, submit, settle]
        lines += [
            f"replay = LAUNCH(memory, {early}, graph)",
            "if replay is None:", f"    {submit}", f"    {settle}",
        ]  # fmt: skip
        made = [*self._publish, f"result = {self._result}"]
        if in_task:
            wait = [
                "await TURN()",
                f"if not replay.poll(spin): await SETTLE(replay, WAITS(has_yielded=True), 0.0, {pace})",
                "elif failures := replay.failures(): RAISE(failures)",
            ]
            return [*lines, "else:", *_indented([*made, *wait, "return result"], 1)]
        return [*lines, "elif replay is not COMPLETED:", *_indented([*made, "FINISH(replay)", "return result"], 1)]

    def _moved(self) -> list[HandleNames]:
        """Return the names of the handles that move into the run."""
        return [self._text.handles[index] for index in self._text.taken]

    def _begin(self) -> list[str]:
        """Return the lines that lock the memory, and move the handles into the run, if no other run is in the way.

        All is on one line. On one line without calls, no other thread and no signal handler comes in between.
        """
        free = []
        for lock, exclusive in self._text.locks:
            free.append(f"{lock}.writer is None" + (f" and not {lock}.readers" if exclusive else ""))
        free += [f"{names.value}._state is {names.state}" for names in self._moved()]
        if not free:
            return []
        locked = [
            f"{lock}.writer = loaded" if exclusive else f"{lock}.readers += 1" for lock, exclusive in self._text.locks
        ]
        locked += [f"{lock}.holder = origin" for lock, _ in self._text.locks]
        locked += [
            f"{n.value}._moved = TAKEN, origin, {n.state}.layout, {n.state}.origin; {n.value}._state = None"
            for n in self._moved()
        ]
        return [
            "with GATE:",
            f"    if {' and '.join(free)}: {'; '.join(locked)}; begun = True",
            "if not begun: return MISS",
        ]  # fmt: skip

    def _undo(self) -> list[str]:
        """Return the statements that move the handles back."""
        return [f"{names.value}._state = {names.state}" for names in self._moved()]

    def _unlock(self) -> list[str]:
        """Return the statements that release the locks. Each is one step for other threads, so it needs no gate."""
        return [
            f"{lock}.writer = None" if exclusive else f"{lock}.readers -= 1" for lock, exclusive in self._text.locks
        ]


def _indented(lines: list[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


def _finish(replay: Replay) -> None:
    """Block this thread until a replay is done, and raise its failures."""
    drive(settle(replay, _blocking, 0.0))


def _end(replay: Replay) -> None:
    """Cancel a replay, and block this thread until it is done: its call ends by an error."""
    replay.cancel()
    drive(_blocking.drain_replay(replay))
