"""The host layer of a feed: what closures compute of host values, compiled to straight Python code.

Each closure is one statement. Those that are given the same bits follow each other behind one test of the bits, and get
the values that the block has computed as local variables:

    if stale & 5:
        v7 = f7(i3.value)
        if type(v7) is not k7: v7 = other(7, v7)
        i7.value = v7
        v8 = f8(v7)
        ...

So a closure that runs again costs its call and less than 100 ns, and one that does not costs 20 ns at most. An error is
traced back to its closure by the line of the statement.
"""

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any, Final, final

import numpy as np

from dagpu.common.containers import is_container, own_containers, values_in
from dagpu.common.critical import call_user
from dagpu.common.wrong_arguments import refuse_stop_iteration
from dagpu.handles import HANDLES
from dagpu.handles.handle_trees import make_unwritable
from dagpu.lowering.updates.comparing.compare_values import host_values_equal, same_kind
from dagpu.lowering.updates.live_inputs import LiveInput, LiveInputs, Sharing
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Inspect, Map
from dagpu.tracing.user_code import describe_closure
from dagpu.tracing.value_tokens import PLAIN

Mark = Callable[[int], None]
"""Records that the bit of a cutoff is stale."""

_Function = Callable[[int, Mark], None]
"""Computes again what depends on stale bits."""


def _run(function: _Function, stale: int, mark: Mark) -> None:
    """Call a compiled function."""
    function(stale, mark)


_CHUNK: Final = 500
"""The most closures in one compiled function."""


_UNCHANGEABLE: Final = PLAIN | {np.ndarray}
"""The types of values that no closure can change: a kept array is read-only."""


class NewTraceNeeded(Exception):
    """An input has a value that the trace does not serve."""


@final
class HostLayer:
    """The compiled host layer of one trace. The values of inputs that depend on the bits `stale` are not the newest."""

    def __init__(self, live: LiveInputs, stale: int, sharing: Sharing | None = None) -> None:
        """With `sharing`, other feeds may share calls of its closures."""
        self._live = live
        self._sharing = sharing
        self._names: dict[str, Any] = {}
        """The names in the code of the function that is being compiled."""
        self._computed: set[int] = set()
        """The inputs that the present block of that function has computed, as local variables."""
        self._nodes: dict[tuple[CodeType, int], tuple[Map[Any], int]] = {}
        """The node of each line of the compiled functions, and which of the computed inputs it is."""
        self._inputs = [index for index, made in enumerate(live.inputs) if made.call is not None]
        """The computed inputs, in their order."""
        self._functions = self._compiled(0, len(self._inputs))
        self.computes = bool(self._inputs)
        """True if the trace computes host values."""
        self._stale = [(0, stale)]
        """The bits on which values depend that are not the newest, from one computed input to the next that is here: a
        closure that fails leaves the values before it as they are to be."""

    def refresh(self, newer: int, mark: Mark) -> None:
        """Compute again what depends on the bits `newer`, which have changed since the last call, and what that did not
        compute if it failed. `mark` adds the bits of cutoffs whose values differ.

        Raises:
            NewTraceNeeded: a value has another type or shape than in the trace.
        """
        pieces = [(start, stale | newer) for start, stale in self._stale]
        ends = [*[start for start, _ in pieces[1:]], len(self._inputs)]
        self._stale, marked = pieces, 0

        def note(bits: int) -> None:
            nonlocal marked
            marked |= bits
            mark(bits)

        for number, ((start, stale), end) in enumerate(zip(pieces, ends, strict=True)):
            for function in self._functions if len(pieces) == 1 else self._compiled(start, end):
                try:
                    call_user(partial(_run, function, stale | marked), note)
                except NewTraceNeeded:
                    raise
                except Exception as error:
                    failed = self._explain(error)
                    left = [(at, bits | marked) for at, bits in [(failed, stale), *pieces[number + 1 :]]]
                    self._stale = left if not failed else [(0, 0), *left]
                    raise
        self._stale = [(0, 0)]

    # ---- code

    def _compiled(self, start: int, end: int) -> list[_Function]:
        """Return the functions that compute these of the inputs again."""
        return [self._compile(at, min(at + _CHUNK, end)) for at in range(start, end, _CHUNK)]

    def _compile(self, start: int, end: int) -> _Function:
        """Return the function that computes these of the inputs again."""
        self._names = {"other": partial(_unlike, self._live), "equal": host_values_equal}
        lines = ["def refresh(stale, mark):"]
        nodes: dict[int, tuple[Map[Any], int]] = {}
        bits: int | None = None
        for place, index in enumerate(self._inputs[start:end], start):
            made = self._live.inputs[index]
            self._names[f"i{index}"] = made
            if made.cutoff is None:
                assert made.node is not None
                if made.bits != bits:
                    bits = made.bits
                    self._computed.clear()
                    lines.append(f" if stale & {bits}:")
                nodes[len(lines) + 1] = made.node, place
                lines += self._closure(index, made)
                self._computed.add(index)
            else:
                bits = None
                self._computed.clear()
                lines += self._cutoff(index, made)
        self._computed.clear()
        scope, self._names = self._names, {}
        exec(compile("\n".join(lines), "<string>", "exec"), scope)
        function: _Function = scope.pop("refresh")  # else it and its globals would be a cycle
        code: CodeType = function.__code__
        self._nodes |= {(code, line): node for line, node in nodes.items()}
        return function

    def _closure(self, index: int, made: LiveInput) -> list[str]:
        """Return the lines that call a closure."""
        assert made.node is not None
        assert made.call is not None
        f: Any = made.node.f
        direct = type(f) not in BUILT_IN and type(f) is not Inspect
        call: Any = f if direct else made.call
        if not self._is_plain(made.argument):
            call = partial(_call_on_own, call)
        last = None if self._sharing is None else self._sharing.last_call(made.node, below_shared=False)
        self._names[f"f{index}"] = call if last is None else partial(last.value, call)
        self._names[f"k{index}"] = type(made.value) if type(made.value) in PLAIN else None
        return [
            f"  v{index} = f{index}({self._expression(index, made.argument)})",
            f"  if type(v{index}) is not k{index}: v{index} = other({index}, v{index})",
            f"  i{index}.value = v{index}",
        ]

    def _is_plain(self, argument: Any) -> bool:
        """Return true for an argument that holds nothing which a closure could change in place."""
        for item in values_in(argument):
            found = self._live.index_of(item)
            if type(item if found is None else self._live.inputs[found].value) not in _UNCHANGEABLE:
                return False
        return type(argument) is tuple or not is_container(argument)

    def _cutoff(self, index: int, made: LiveInput) -> list[str]:
        """Return the lines that let a value through a cutoff."""
        self._names[f"c{index}"] = made.cutoff
        return [
            f" if stale & {made.watched}:",
            f"  x = {self._expression(index, made.argument)}",
            f"  if not equal(c{index}, i{index}.value, x):",
            f"   stale |= {made.own}; mark({made.own})",
            f"   i{index}.value = other({index}, x)",
        ]

    def _expression(self, index: int, argument: Any) -> str:
        """Return the code for the present value of an argument."""
        found = self._live.index_of(argument)
        if found in self._computed:
            return f"v{found}"
        if found is not None:
            self._names[f"i{found}"] = self._live.inputs[found]
            return f"i{found}.value"
        if type(argument) is tuple:
            return f"({''.join(f'{self._item(index, item)}, ' for item in argument)})"
        return self._item(index, argument)

    def _item(self, index: int, item: Any) -> str:
        """Return the code for an item of an argument: an input, a constant, or a container that is searched."""
        if self._live.index_of(item) is not None or type(item) is tuple:
            return self._expression(index, item)
        name = f"a{index}_{len(self._names)}"
        self._names[name] = item
        if not self._live.derivable(item):
            return name
        self._names["concrete"] = self._live.concrete
        return f"concrete({name})"

    def _explain(self, error: Exception) -> int:
        """Add the note that names the closure which raised an error. Return which of the computed inputs that is, 0 if
        it is not known."""
        trace = error.__traceback__
        while trace is not None:
            found = self._nodes.get((trace.tb_frame.f_code, trace.tb_lineno))
            if found is not None:
                node, place = found
                whose = describe_closure(node, node.f)
                if isinstance(error, StopIteration):
                    refuse_stop_iteration(error, whose)
                error.add_note(f"dagpu: in {whose}")
                return place
            trace = trace.tb_next
        return 0


def _call_on_own(call: Callable[[Any], Any], argument: Any) -> Any:
    """Call a closure with containers of its own: what it is given is kept for later calls."""
    return call(own_containers(argument))


def _unlike(live: LiveInputs, index: int, value: Any) -> Any:
    """Return a value of another type than before, or whose type says too little, in the form in which it is kept.

    Raises:
        NewTraceNeeded: the trace does not serve it.
    """
    held = any(type(item) in HANDLES or isinstance(item, DeviceOp) for item in values_in(value))
    if held or not same_kind(live.inputs[index].value, value):
        raise NewTraceNeeded
    return make_unwritable(value)
