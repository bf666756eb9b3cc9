"""The pass back through a recorded trace, as an op: for each call its rule, the last call first."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias, final

from dagpu import arrays as array
from dagpu.common.errors import GradientError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import Origin, describe
from dagpu.grad.cotangents import AnyOp, Cotangent, Steps, materialised
from dagpu.grad.dataflow import Flow, TracedCall, Version
from dagpu.grad.record import Call, Place, Saved, Seen
from dagpu.grad.totals import Home, Part, placed, places_in, total_of
from dagpu.handles import HANDLES, SharedTensor
from dagpu.handles.handle_state import Storage, take_state
from dagpu.kernels.decorator import Kernel
from dagpu.kernels.expression import Expression, ReducedExpression, TupleExpression, Written
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import SHARE, ByTrace, Then, Value
from dagpu.ops.creation import from_host, zeros

Rule: TypeAlias = "Callable[[CallBack], Any]"
"""Returns the gradients of a call's arguments by their names (of a list a list): cotangents, ops, or None for 0. It may
do so in steps (`Steps`)."""

RULES: dict[str, Rule] = {}
"""The rules of functions by their names. Those of expressions are under "expression", "reduced" and "written"."""
CONSTANT: set[str] = set()
"""The functions whose results do not change, or change in steps alone: their derivative is 0 wherever there is one."""
OF_COMPLEX: set[str] = set()
"""Those of `RULES` that are right for complex numbers too."""
OWN_RULES: Final[dict[Any, "Callable[..., Any]"]] = {}
"""The rules of users, by what they are the derivative of."""


def key_of_rule(function: Any) -> str:
    """Return under which name `RULES` has the rule of a recorded function."""
    if isinstance(function, Expression | TupleExpression):
        return "expression"
    if isinstance(function, ReducedExpression):
        return "reduced"
    return "written" if isinstance(function, Written) else getattr(function, "__name__", "")


def own_rule(function: Any) -> "Callable[..., Any] | None":
    """Return the rule that a user has declared for a function; None if there is none."""
    return OWN_RULES.get(owner_of_rule(function))


def owner_of_rule(function: Any) -> Any:
    """Return by what `OWN_RULES` has the rule of a function: of a kernel by what its copies have in common, which are
    launched with another grid, block or shared memory, and compute the same."""
    return function.spec.host if isinstance(function, Kernel) else function


def has_rule(call: Call) -> bool:
    """True if a call has a derivative."""
    name = key_of_rule(call.function)
    return own_rule(call.function) is not None or name in RULES or name in CONSTANT


def is_rule_of_complex(call: Call) -> bool:
    """True if the derivative of a call is right for complex numbers. Of a user's rule, its author says so."""
    name = key_of_rule(call.function)
    if own_rule(call.function) is not None or name in CONSTANT:
        return True
    return (call.function.made_of.name if name == "reduced" else name) in OF_COMPLEX


@final
class CallBack:
    """A call, as its rule sees it: the gradient that comes in, and what the call has read and written."""

    def __init__(self, traced: TracedCall, gs: "list[Cotangent | None]", flow: Flow, saved: Saved) -> None:
        self.call, self.gs = traced.call, gs
        self._traced, self._flow, self._saved = traced, flow, saved

    @property
    def versions(self) -> "tuple[Version | None, ...]":
        """The values of the tensors among the arguments; None for one that does not depend on a leaf."""
        return self._traced.args

    @property
    def g(self) -> Cotangent:
        """The gradient of the only result."""
        found = self.gs[0]
        assert found is not None
        return found

    @property
    def function(self) -> Any:
        """What was called."""
        return self.call.function

    def __getitem__(self, name: str) -> Any:
        """An argument as it was passed; `Place`s stand for tensors."""
        return self.call.arguments[name]

    def is_tensor(self, name: str) -> bool:
        """True for an argument that is a tensor."""
        return type(self.call.arguments.get(name)) is Place

    def needs(self, place: Any) -> bool:
        """True for a tensor that depends on what is differentiated."""
        place = self.call.arguments.get(place) if isinstance(place, str) else place
        return type(place) is Place and self._traced.args[place.number] is not None

    def layout(self, place: Any) -> Layout:
        """The layout of a tensor."""
        place = self.call.arguments[place] if isinstance(place, str) else place
        seen = self.call.args[place.number]
        assert seen is not None
        layout: Layout = seen.layout
        return layout

    def shape(self, place: Any) -> Shape:
        """The shape of a tensor."""
        return self.layout(place).shape

    def read(self, place: Any) -> Any:
        """Return a tensor for the rule to read; an argument that is none as it was passed.

        Raises:
            GradientError: something has been written to it since.
        """
        place = self.call.arguments[place] if isinstance(place, str) else place
        if type(place) is not Place:
            return place
        seen, version = self.call.args[place.number], self._traced.read[place.number]
        assert seen is not None
        assert version is not None
        return self._handle(seen, version)

    def dual(self, place: Any) -> Steps:
        """Return a tensor for the rule of a product to read: of complex numbers the conjugates, in memory of their own.

        Raises:
            GradientError: something has been written to it since.
        """
        found = self.read(place)
        return (yield array.conj(found)) if found.dtype.kind == "c" else found

    @property
    def y(self) -> Any:
        """The only result, for the rule to read."""
        return self.result(0)

    def result(self, number: int) -> Any:
        """A result, for the rule to read."""
        return self._handle(self.call.results[number], self._traced.results[number])

    def _handle(self, seen: Seen, version: Version) -> Any:
        if not self.can_read(seen, version):
            writer = self._flow.writer(version.memory)
            raise GradientError(
                f"{self.call.name} at {describe(self.call.origin)} is differentiated by what it has read or written, "
                f"but {writer} has written over that since. Give the one that writes a copy: dup(x)."
            )
        return self._saved.handle(seen, self.call.origin)

    def void_if_written(self, place: Any) -> Any:
        """Return an argument for a user's rule. If something has been written to it, its use says so."""
        if type(place) is not Place:
            return place
        seen, version = self.call.args[place.number], self._traced.read[place.number]
        return None if seen is None or version is None else self._void(seen, version)

    def void_results(self) -> list[Any]:
        """Return the results for a user's rule, likewise."""
        return [self._void(*each) for each in zip(self.call.results, self._traced.results, strict=True)]

    def _void(self, seen: Seen, version: Version) -> Any:
        handle = self._saved.handle(seen, self.call.origin)
        if not self.can_read(seen, version):
            take_state(handle, f"being written over by {self._flow.writer(version.memory)}", self.call.origin)
        return handle

    def can_read(self, seen: Seen, version: Version) -> bool:
        """True if a value is still in its memory."""
        return self._flow.version(version.memory) == version

    def kept_bytes(self, name: str) -> float:
        """The bytes of an argument that are in memory for a rule alone; infinite for one that has been written over."""
        place = self.call.arguments.get(name)
        if type(place) is not Place:
            return 0
        seen, version = self.call.args[place.number], self._traced.read[place.number]
        assert seen is not None
        assert version is not None
        return self._kept(seen, version)

    def kept_bytes_of_result(self, number: int) -> float:
        """As `kept_bytes`, of a result."""
        return self._kept(self.call.results[number], self._traced.results[number])

    def _kept(self, seen: Seen, version: Version) -> float:
        if not self.can_read(seen, version):
            return float("inf")
        return seen.layout.nbytes if seen.storage.memory is None else 0

    def whole_g(self) -> Steps:
        """Return a handle to the gradient of the only result, in its whole shape."""
        return (yield from materialised(self.g))


def backward(
    flow: Flow, saved: Saved, leaves: Sequence[Seen], root: Seen, seed: "SharedTensor[Any] | float", origin: Origin
) -> AnyOp:
    """Return the op of the gradients of leaves: a tuple of shared tensors. `seed` is the gradient of the root."""
    return in_steps(_steps(flow, saved, leaves, root, seed), origin)


def in_steps(steps: "Generator[AnyOp, Any, Any]", origin: Origin) -> AnyOp:
    """Return the op of a computation in steps, whose result is what the steps return."""

    def go_on(value: Any) -> AnyOp:
        try:
            op = steps.send(value)
        except StopIteration as end:
            return Value(end.value, origin)
        return Then(op, ByTrace(lambda found, _: go_on(_shared(found)), "gradient"), origin)

    return go_on(None)


def _shared(x: Any) -> Any:
    """Return a result of a step as something that any number of rules may read."""
    if type(x) in HANDLES and type(x) is not SharedTensor:
        return SHARE.apply(x, None)
    return tuple(map(_shared, x)) if isinstance(x, tuple) else x


def _steps(flow: Flow, saved: Saved, leaves: Sequence[Seen], root: Seen, seed: "SharedTensor[Any] | float") -> Steps:
    parts: dict[Version, list[Part]] = {}
    several = len({each.memory.device for each in flow.whole if isinstance(each.memory, Storage)}) > 1

    def home(storage: Any, origin: Origin) -> Home:
        near = not several or storage.device.index < 0  # of a device that is chosen later nothing is said
        return Home(None if near else storage.device, origin)

    if flow.depends(root.storage):
        g = Cotangent(seed, root.layout.shape, root.layout.dtype)
        parts[flow.version(root.storage)] = [Part(g, root.layout)]
    while flow.calls:
        traced = flow.calls.pop()
        origin, gs = traced.call.origin, list[Cotangent | None]()
        for version in traced.results:
            found, at = parts.pop(version, None), home(version.memory, origin)
            gs.append(None if found is None else (yield from placed(total_of(found, flow.whole[version], at), at)))
        if all(g is None for g in gs):
            continue
        back = CallBack(traced, gs, flow, saved)
        gradients = yield from placed(_cotangents(back), home(traced.results[0].memory, origin))
        for number, value in enumerate(traced.args):
            gradient, seen = gradients.get(number), traced.call.args[number]
            if value is not None and gradient is not None and seen is not None:
                parts.setdefault(value, []).append(Part(gradient, seen.layout))
    made = []
    for leaf in leaves:
        version = Version(leaf.storage, 0)
        found, at = parts.pop(version, None), home(leaf.storage, leaf.state.origin)
        made.append((yield from placed(_of_leaf(found, leaf.layout, flow.whole[version], at), at)))
    return tuple(made)


def _of_leaf(parts: "list[Part] | None", layout: Layout, whole: Layout, home: Home) -> Steps:
    """Return the gradient of a leaf, which may be a part of its memory."""
    if parts is None:
        return (yield zeros(layout.shape, layout.dtype.type))
    g = yield from materialised((yield from total_of(parts, whole, home)))
    if layout is whole:
        return g
    places = from_host(places_in(layout, whole).reshape(-1))
    return (yield array.take(g, places)).reshape(layout.shape)


def _cotangents(back: CallBack) -> Steps:
    """Return the gradients of a call's tensors by their numbers, as cotangents."""
    gradients = yield from _gradients(back)
    found: dict[int, Cotangent] = {}
    for number, value in enumerate(back.versions):
        gradient, seen = gradients.get(number), back.call.args[number]
        if value is not None and gradient is not None and seen is not None:
            found[number] = yield from _as_cotangent(gradient, seen.layout, back.call)
    return found


def _as_cotangent(found: Any, layout: Layout, call: Call) -> Steps:
    if isinstance(found, Cotangent):
        return found
    if isinstance(found, DeviceOp):
        found = yield found
    if found.shape != layout.shape or found.dtype != layout.dtype:
        raise GradientError(
            f"the rule of {call.name} at {describe(call.origin)} gave a gradient of {found.dtype.name} with the shape "
            f"{found.shape} for an argument of {layout.dtype.name} with the shape {layout.shape}. Return one like the "
            "argument."
        )
    return Cotangent(found, layout.shape, layout.dtype)


def _gradients(back: CallBack) -> Steps:
    """Return the gradients of a call's tensors by their numbers."""
    name = key_of_rule(back.function)
    own = own_rule(back.function)
    if own is None and name in CONSTANT:
        return {}
    if own is not None:
        return (yield from _by_own_rule(own, back))
    found = RULES[name](back)
    if isinstance(found, Generator):
        found = yield from found
    by_number: dict[int, Any] = {}
    for key, each in found.items():
        places = back[key]
        listed = places if type(places) in (tuple, list) else (places,)
        given = each if type(each) in (tuple, list) else (each,)
        for place, part in zip(listed, given, strict=True):
            if type(place) is Place and part is not None and back.needs(place):
                by_number[place.number] = part
    return by_number


def _by_own_rule(rule: "Callable[..., Any]", back: CallBack) -> Steps:
    """Return the gradients that a user's rule gives, by the numbers of the tensors."""
    gs = []
    for g in back.gs:
        gs.append(None if g is None else (yield from materialised(g)))  # noqa: PERF401  # reason: no list has steps
    arguments: list[Any] = []
    for each in back.call.arguments.values():
        arguments += each if type(each) in (tuple, list) else each.values() if type(each) is dict else (each,)
    results = back.void_results()
    given = (gs[0], results[0]) if len(results) == 1 else (tuple(gs), tuple(results))
    found: Any = rule(*given, *[back.void_if_written(each) for each in arguments])
    found = (yield found) if isinstance(found, DeviceOp) else found
    parts: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    if len(parts) != len(arguments):
        raise GradientError(
            f"the rule of {back.call.name} at {describe(back.call.origin)} gave {len(parts)} gradients for "
            f"{len(arguments)} arguments. Return one for each, None for an argument without one."
        )
    pairs = zip(arguments, parts, strict=True)
    return {place.number: part for place, part in pairs if type(place) is Place and part is not None}
