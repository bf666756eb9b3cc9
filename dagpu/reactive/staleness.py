"""What a change of inputs leaves to be done: which instructions of a program run again for it, which buffers are kept
between updates, and which contents of two traces are equal.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final, TypeVar, final, get_args

from dagpu.common.errors import PlanError
from dagpu.common.places import Origin, describe
from dagpu.ops.initializers import Recipe
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.program import (
    Cell,
    CopyDtoD,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Items,
    Program,
    Role,
    Tiles,
    Value,
    View,
    constant_values,
    operand_values,
    operands_in,
)
from dagpu.reactive.claims import Change
from dagpu.tracing.value_tokens import PLAIN, exact_token

# ---- what is kept by key


_K = TypeVar("_K")
_V = TypeVar("_V")


@final
class Recent(OrderedDict[_K, _V]):
    """A dict of at most a number of entries, the one used last at the end."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def use(self, key: _K) -> _V | None:
        """Return what is kept for a key, which has been used last from now on; None if there is nothing."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a value, and drop the one that was not used for the longest time, if there are too many. Return the
        value."""
        self[key] = value
        if len(self) > self._most:
            self.popitem(last=False)
        return value


# ---- value numbers
#
# Equal numbers mean contents that are equal by construction. The number of what an instruction leaves in one of its
# outputs stands for the instruction, without the numbers of its buffers, for the number of the output, and for the
# value numbers of all that it reads. Where a stage ends, the next one goes on with copies, and has values in place of
# cells: so a copy of a whole buffer has the number of what it copies, and a value that a function of the host gets has
# one number either way. So two programs that were traced one after the other can be compared, and memory of the first
# one that is still right for the second one stays in use.


@final
class ValueNumbers:
    """A table of value numbers, for several programs. It keeps alive the objects whose ids are in it."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._named: dict[int, int] = {}
        """The numbers of contents, by the ids of the objects that hold them."""
        self._alive: list[object] = []

    def number(self, term: Hashable) -> int:
        """Return the number of a term: the same for equal terms."""
        return self._numbers.setdefault(term, len(self._numbers))

    def of_leaf(self, value: Any) -> int:
        """Return the number of a value from outside: memory, an array, a number."""
        if type(value) in PLAIN:
            return self.number(("plain", exact_token(value)))
        if id(value) in self._named:
            return self._named[id(value)]
        self._alive.append(value)
        return self.number(("object", id(value)))

    def name(self, held: object, number: int) -> None:
        """Note that this object, memory or a value of the host, holds the contents of this number: what a later stage
        makes of it is what one stage alone would make. An object that has a number already keeps that: a stage may have
        read it as what a cutoff lets through."""
        if type(held) not in PLAIN and ("object", id(held)) not in self._numbers:
            self._alive.append(held)
            self._named[id(held)] = number

    def are_equal(self, one: object, other: object) -> bool:
        """Return true for one object, and for two that hold contents of one number."""
        return one is other or self._named.get(id(one), self) == self._named.get(id(other))

    def of_program(
        self, program: Program, leaf: Callable[[int], Any], made: Mapping[Value, object] = MappingProxyType({})
    ) -> dict[int, int]:
        """Return the number of what a program leaves in each buffer that it uses. `leaf` returns the value that a
        buffer holds before the program starts, and `made` has the memory of values that other programs get as leaves;
        None where it is not there yet."""
        accesses, numbers = program.accesses, [-1] * len(program.buffers)
        for instruction, uses in zip(program.instructions, accesses.uses, strict=True):
            for value in uses:
                if numbers[value] < 0:
                    numbers[value] = self.of_leaf(leaf(value))
            if type(instruction) is HostCall:
                held_in = {accesses.buffer[value]: numbers[value] for value in uses}
                numbers.append(self.number(self._call(program, instruction, held_in)))
                continue
            values = operand_values(instruction)
            names: dict[int, int] = {}
            for buffer in (*[each.buffer for each in operands_in(values)], *instruction.reads, *instruction.writes):
                names.setdefault(buffer, len(names))
            does = self._operation(program, instruction), tuple([self._operand(each, names) for each in values])
            reads = tuple(sorted([(names[accesses.buffer[value]], numbers[value]) for value in uses]))
            for buffer in instruction.writes:
                held = made.get(len(numbers))
                if held is not None:
                    numbers.append(self.of_leaf(held))
                elif type(instruction) is CopyDtoD and _is_whole(instruction, program):
                    numbers.append(numbers[uses[0]])
                else:
                    numbers.append(self.number((does, names[buffer], reads)))
        return {buffer: numbers[value] for buffer, value in enumerate(accesses.last) if numbers[value] >= 0}

    def _operation(self, program: Program, instruction: Instruction) -> Hashable:
        """Return what an instruction does, apart from its operands. A captured graph has memory of its own, and what an
        `If` decides depends on its body."""
        own = [instruction] if type(instruction) in (GraphLaunch, If) else constant_values(instruction)
        return type(instruction), program.devices[instruction.device], tuple(map(self._field, own))

    def _call(self, program: Program, call: HostCall, numbers: dict[int, int]) -> Hashable:
        """Return what a call does, of arguments that have these numbers where they are in buffers."""
        others = numbers.keys() - {each.buffer for each in operands_in((call.argument,))}
        reads = tuple(sorted([numbers[buffer] for buffer in others]))
        return self._operation(program, call), self._argument(call.argument, numbers), reads

    def _argument(self, argument: Any, numbers: dict[int, int]) -> Hashable:
        """Return an argument of a function of the host: the number of its value, or those of its items."""
        if type(argument) is Items or type(argument) is tuple:
            items = argument.items if type(argument) is Items else argument
            return tuple([self._argument(item, numbers) for item in items])
        return numbers[argument.buffer] if type(argument) is Cell else self.of_leaf(argument)

    def _field(self, value: Any) -> Hashable:
        """Return what a field of an instruction says: equal for kernels and recipes that do the same."""
        if type(value) is KernelSpec:
            self._alive.append(value.host)
            return id(value.host), value.block, value.shared_bytes, value.checked
        if isinstance(value, get_args(Recipe)):
            return type(value), tuple([self._constant(getattr(value, name)) for name in type(value).__slots__])
        return self._constant(value)

    def _operand(self, operand: Any, names: dict[int, int]) -> Hashable:
        """Return an operand or a constant. `names` has what stands for the buffers, whose contents count apart."""
        kind = type(operand)
        if kind is View:
            return View, names[operand.buffer], operand.layout
        if kind is Tiles:
            return Tiles, names[operand.buffer], operand.view.layout, operand.tile, operand.grid
        return (Cell, names[operand.buffer]) if kind is Cell else self._constant(operand)

    def _constant(self, value: Any) -> Hashable:
        return tuple(map(self._constant, value)) if type(value) is tuple else self.of_leaf(value)


def _is_whole(copy: CopyDtoD, program: Program) -> bool:
    """Return true if a copy leaves in a buffer what another one of the same device holds, byte for byte."""
    out, source = program.buffers[copy.out.buffer], program.buffers[copy.source.buffer]
    layout = copy.out.layout
    return layout == copy.source.layout and layout.nbytes == out.nbytes == source.nbytes and out.device == source.device


# ---- staleness
#
# Each value of a program has the bits of the sources and cutoffs that it depends on. The *targets* are the buffers
# whose last value must be right after an update: the results, and those whose last value some instruction with more
# bits needs again, which are *kept*. Of a chain on one source nothing is kept. An update for the bits `mask` makes
# the targets whose bits meet `mask`, and for each of them what it needs and is not kept. So the instructions of an
# update depend on `mask` alone, and with nothing dropped they are exactly those whose bits meet `mask`, as far as a
# target needs them.


_MOST_REMEMBERED: Final = 64
"""The most changes whose stale targets are remembered, and sets of targets whose instructions are."""


@final
class Staleness:
    """The dependences of one program, and what must be kept."""

    def __init__(
        self,
        program: Program,
        bits: dict[int, int],
        compared: Iterable[int] = (),
        dropped: Iterable[int] = (),
        also_kept: Iterable[int] = (),
    ) -> None:
        self.program = program
        self.bits = bits
        """The bits of each buffer from outside; a buffer that is missing never changes."""
        self._accesses = accesses = program.accesses
        self.deps: list[int] = []
        """The bits of each instruction."""
        found = [bits.get(buffer, 0) for buffer in range(len(program.buffers))]  # the bits of each value
        for instruction, uses in zip(program.instructions, accesses.uses, strict=True):
            mask = 0
            for value in uses:
                mask |= found[value]
            self.deps.append(mask)
            found += [mask] * len(instruction.writes)
        self.last = {buffer: writer for buffer, writer in enumerate(accesses.writer) if writer >= 0}
        """The instruction that writes a buffer last."""
        self.compared = frozenset(compared)
        """The buffers whose contents a cutoff compares."""
        self.results = {
            b for b in self.last if program.buffers[b].role is Role.OUTPUT
        } | self.compared & self.last.keys()
        """The buffers that others may hold: an update makes them in new memory while something else reads them."""
        self.also_kept = frozenset(also_kept)
        """Buffers that are kept so that launches may run in tiles."""
        self.kept = (self._needed_again() | self.also_kept) - self.results - set(dropped)
        """The buffers that a later update may read, and that nothing outside can see."""
        self.targets = self.results | self.kept
        self.read = frozenset([buffer for each in program.instructions for buffer in each.reads])
        """The buffers that an instruction reads."""
        self._stale: Recent[Change, set[int]] = Recent(_MOST_REMEMBERED)
        """The stale targets by change: the same changes often come back."""
        self._makers: Recent[frozenset[int], tuple[int, ...]] = Recent(_MOST_REMEMBERED)
        """The instructions by the targets that they make."""
        self.kept_bytes = sum([program.buffers[buffer].nbytes for buffer in self.targets])
        """The bytes of device memory that stay between updates."""

    def _needed_again(self) -> set[int]:
        """Return the buffers whose last value some instruction with more bits needs."""
        accesses, found = self._accesses, set[int]()
        for index in self.instructions_below(self.results):
            for value in accesses.uses[index]:
                buffer = accesses.buffer[value]
                again = accesses.last[buffer] == value and self.deps[index] & ~self.bits_of_value(value)
                if again and buffer in self.last and buffer not in self.results:
                    found.add(buffer)
        return found

    def bits_of(self, buffer: int) -> int:
        """Return the bits of the last value of a buffer."""
        return self.bits_of_value(self._accesses.last[buffer])

    def bits_of_value(self, value: Value) -> int:
        """Return the bits of a value."""
        maker = self._accesses.maker[value]
        return self.bits.get(value, 0) if maker < 0 else self.deps[maker]

    def stale_targets(self, change: Change) -> set[int]:
        """Return the targets that an update makes. The caller must not change the set."""
        found = self._stale.use(change)
        if found is not None:
            return found
        mask, wait, only, lost, given, _, left = change
        return self._stale.keep(
            change,
            {
                buffer
                for buffer in self.targets
                if not (bits := self.bits_of(buffer)) & wait
                and (not only or bits & only)
                and (bits & mask or buffer in lost)
                and buffer not in given
                and buffer not in left
            },
        )

    def instructions_for(self, targets: AbstractSet[int]) -> tuple[int, ...]:
        """Return the instructions that make these targets, in the order of the program. The other targets hold their
        last values."""
        key = frozenset(targets)
        found = self._makers.use(key)
        if found is None:
            found = self._makers.keep(key, self._find_makers(key))
        return found

    def _find_makers(self, targets: frozenset[int]) -> tuple[int, ...]:
        last, valid = self._accesses.last, self.targets - targets
        while True:
            chosen = self._closure({self.last[buffer] for buffer in targets}, {last[buffer] for buffer in valid})
            # A kept buffer of which an earlier value is made again loses its last one.
            written = {b for index in chosen for b in self.program.instructions[index].writes} & valid
            if not written:
                return tuple(sorted(chosen))
            targets = targets | written
            valid = valid - written

    def instructions_below(self, buffers: Iterable[int]) -> set[int]:
        """Return the instructions on which the last values of these buffers depend, those that make them included."""
        return self._closure({self.last[buffer] for buffer in buffers}, ())

    def instructions_for_mask(self, mask: int) -> tuple[int, ...]:
        """Return the instructions that run again if these bits have changed, in the order of the program."""
        return self.instructions_for(self.stale_targets(Change(mask)))

    def _closure(self, roots: set[int], kept: Container[Value]) -> set[int]:
        """Return the instructions that make what `roots` need, these included, where these values are kept."""
        chosen, maker, uses = set(roots), self._accesses.maker, self._accesses.uses
        todo = list(roots)
        while todo:
            for value in uses[todo.pop()]:
                writer = maker[value]
                if writer >= 0 and writer not in chosen and value not in kept:
                    chosen.add(writer)
                    todo.append(writer)
        return chosen


# ---- a limit of memory


def fit_into(staleness: Staleness, limit: int, where: Origin) -> Staleness:
    """Return the analysis of the same program with at most `limit` bytes of targets.

    Kept buffers are dropped, those first that are made again with the fewest bytes of traffic for each byte that they
    take. `where` is the place of `observe`.

    Raises:
        PlanError: the results alone take more.
    """
    program = staleness.program
    size = {buffer: program.buffers[buffer].nbytes for buffer in staleness.targets}
    results = sum(size[buffer] for buffer in staleness.results)
    if results > limit:
        raise PlanError(
            f"observe at {describe(where)} with memory={limit:,}: results alone take {results:,} bytes. Raise it, or "
            "observe less."
        )
    dropped: set[int] = set()
    total = sum(size.values())
    droppable = [buffer for buffer in staleness.kept if size[buffer]]
    for buffer in sorted(droppable, key=lambda each: (_traffic(staleness, each) / size[each], each)):
        if total <= limit:
            break
        dropped.add(buffer)
        total -= size[buffer]
    if not dropped:
        return staleness
    return Staleness(program, staleness.bits, staleness.compared, dropped, staleness.also_kept)


def _traffic(staleness: Staleness, buffer: int) -> int:
    """Return the bytes that the instructions write which make one kept buffer of the others."""
    chosen = staleness.instructions_for({buffer})
    buffers = staleness.program.buffers
    return sum(buffers[written].nbytes for index in chosen for written in staleness.program.instructions[index].writes)
