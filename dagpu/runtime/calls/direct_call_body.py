"""The text of a direct call after its guards: it locks and moves the inputs, submits, waits and returns the result."""

from collections.abc import Sequence
from typing import Final, final

from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from dagpu.backends.protocol import COMPLETED, Bindings, Replay
from dagpu.common.critical import BOOKKEEPING, INTERRUPT
from dagpu.lowering.arguments.call_text import CallText, HandleNames
from dagpu.lowering.tracing.undo_log import TAKEN
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.run_call import settle
from dagpu.runtime.waiting.trio_waits import TrioWaits
from dagpu.runtime.waiting.waits import BlockingWaits, drive

_blocking: Final = BlockingWaits()

_FEW_CELLS: Final = 16
"""The most buffers whose list is written out."""


@final
class DirectCallBody:
    """Writes the functions of a direct call around the guards of its text."""

    def __init__(
        self,
        text: CallText,
        loaded: LoadedPlan,
        cells: int,
        result: str,
        publish: Sequence[str] = (),
        *,
        is_update: bool = False,
        decides: bool = False,
    ) -> None:
        """`cells` is the number of the plan's buffers and cells, `result` the expression of the result, before which
        come the lines `publish`. The call of an update notes what a run that fails leaves behind. A plan that `decides`
        what it runs is one graph: these lines read what it has decided, and the general way runs the call if no graph
        can be launched."""
        memory = [text.cells.get(buffer, "None") for buffer in range(cells)]
        self._text = text
        self._result = result
        self._publish = publish
        self._is_update = is_update
        self._decides = decides
        self.constants = text.constants
        if len(memory) <= _FEW_CELLS:
            self._memory = [f"memory = [{', '.join(memory)}]"]
        else:
            bound = [f"memory[{cell}] = {name}" for cell, name in text.cells.items()]
            self._memory = [f"memory = [None] * {len(memory)}", *bound]
        text.constants.update(
            BINDINGS=Bindings, CANCELLED=checkpoint_if_cancelled, COMPLETED=COMPLETED, END=_end, FINISH=_finish,
            GATE=BOOKKEEPING, INTERRUPT=INTERRUPT, SETTLE=settle,
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
            *(["    memory = ()"] if self._is_update else []),
            "    try:",
            *_indented(self._begin(), 2),
            "        loaded.runs += 1",
            *_indented([*self._memory, *self._run(in_task), *self._publish, f"return {self._result}"], 2),
            "    except BaseException:",
            "        if replay is not None: END(replay)",
            *[f"        elif begun: {'; '.join(undo)}" for undo in [self._undo()] if undo],
            *(["        loaded.failed_run = replay, memory"] if self._is_update else []),
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
        lines.append(f"replay = LAUNCH(memory, {early}, graph)")
        wait = [
            "await TURN()",
            f"if not replay.succeeds(spin): await SETTLE(replay, WAITS(has_yielded=True), 0.0, {pace})",
        ]
        if self._decides:
            return [*lines, "if replay is None: return MISS", *(wait if in_task else [settle])]
        lines += ["if replay is None:", f"    {submit}", f"    {settle}"]
        made = [*self._publish, f"result = {self._result}"]
        if in_task:
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
