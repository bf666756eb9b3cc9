"""Where derivatives flow in a recorded trace: from the leaves by the memory that instructions read and write.

Each instruction of the trace belongs to a recorded call or to none. One that belongs to none, and reads memory that
depends on a leaf, is refused: what it makes would have a gradient of 0 without a reason. So is a call without a rule.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.errors import GradientError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin, describe
from dagpu.grad.record import Call, Recorded, Seen, Segment
from dagpu.handles.handle_state import Storage
from dagpu.kernels.expression import Written
from dagpu.plans.program import CopyDtoD, Fill, Instruction

Key: TypeAlias = "Storage | tuple[int, int]"
"""The memory of a value; of memory that no handle refers to any more, its builder and buffer."""


class Version(NamedTuple):
    """Memory between two writes to it: a value."""

    memory: Key
    number: int


class TracedCall(NamedTuple):
    """A call on the way from the leaves, with the values of its tensors."""

    call: Call
    args: tuple[Version | None, ...]
    """The values of the arguments; None for one that does not depend on a leaf."""
    read: tuple[Version | None, ...]
    """The values of all arguments when the call read them."""
    results: tuple[Version, ...]


@final
class Flow:
    """The calls of a gradient, with the values that they read and write.

    Raises:
        GradientError: a leaf flows into an instruction that belongs to no call, into a call without a rule, or as
            complex numbers into one whose rule is for real numbers.
    """

    def __init__(
        self,
        leaves: Sequence[Seen],
        recorded: Recorded,
        has_rule: Callable[[Call], bool],
        is_rule_of_complex: Callable[[Call], bool],
    ) -> None:
        self.calls: list[TracedCall] = []
        self.whole: dict[Version, Layout] = {}
        """The layout of each value that depends on a leaf, all of it."""
        self._numbers: dict[Key, int] = {}
        self._writers: dict[Key, tuple[Origin, str]] = {}
        self._depends: set[Key] = set()
        self._broken: dict[Key, str] = {}
        self._written: dict[Call, dict[Key, None]] = {}
        """What calls that wait have written so far. Meanwhile nothing else writes to their arguments, which they have
        been lent."""
        self._has_rule = has_rule
        self._is_rule_of_complex = is_rule_of_complex
        for leaf in leaves:
            self._depends.add(leaf.storage)
            self.whole[Version(leaf.storage, 0)] = leaf.layout if is_whole(leaf) else _all_of(leaf)
        for builder, instructions, first, within in recorded.stages():
            memory = builder.storages()

            def key_of(buffer: int, builder: Any = builder, memory: dict[int, Storage] = memory) -> Key:
                return memory.get(buffer, (id(builder), buffer))

            self._follow(instructions, first, within, key_of)

    def version(self, memory: Key) -> Version:
        """Return the value that memory has at the end."""
        return Version(memory, self._numbers.get(memory, 0))

    def depends(self, memory: Key) -> bool:
        """True for memory whose value depends on a leaf."""
        return memory in self._depends

    def writer(self, memory: Key) -> str:
        """Return what wrote to memory last, and where."""
        origin, name = self._writers[memory]
        return f"{name} at {describe(origin)}"

    # ---- one stage
    def _follow(
        self, instructions: Sequence[Instruction], first: int, segments: Sequence[Segment], key_of: Callable[[int], Key]
    ) -> None:
        """Follow the instructions of a stage from number `first` on. The segments are in their order."""
        at = first
        for segment in segments:
            for instruction in instructions[at : segment.begin]:
                self._plain(instruction, key_of)
            part = instructions[segment.begin : segment.end]
            if segment.is_last:
                self._enter(segment.call, part, key_of)
            else:
                self._pass(segment.call, part, key_of)
            at = segment.end
        for instruction in instructions[at:]:
            self._plain(instruction, key_of)

    def _plain(self, instruction: Instruction, key_of: Callable[[int], Key]) -> None:
        """Follow an instruction that belongs to no call."""
        for buffer in instruction.reads:
            if self.depends(key_of(buffer)):
                raise GradientError(
                    f"{_shown(instruction)} at {describe(instruction.origin)} reads what is differentiated, and no "
                    "rule says how: its gradient would be 0. Give it a rule (gradient_of), build it of functions of "
                    "dagpu.array within the function, or keep it out: stop_gradient(x)."
                )
        for buffer in instruction.writes:
            key = key_of(buffer)
            self._write(key, instruction.origin, _shown(instruction))
            whole = (
                isinstance(instruction, Fill | CopyDtoD)
                and buffer not in instruction.reads
                and isinstance(key, Storage)
                and instruction.out.layout.nbytes == key.nbytes
            )
            if key in self._depends and whole:
                self._depends.discard(key)
                self._broken.pop(key, None)
            elif key in self._depends:
                self._broken[key] = f"{_shown(instruction)} at {describe(instruction.origin)}"

    def _write(self, key: Key, origin: Origin, name: str) -> None:
        self._numbers[key] = self._numbers.get(key, 0) + 1
        self._writers[key] = origin, name

    def _pass(self, call: Call, instructions: Sequence[Instruction], key_of: Callable[[int], Key]) -> None:
        """Follow instructions of a call that waits after them."""
        if not _is_stopped(call):
            self._check_reads(call, instructions, key_of)
        written = dict.fromkeys([key_of(buffer) for each in instructions for buffer in each.writes])
        self._written.setdefault(call, {}).update(written)
        for key in written:
            self._write(key, call.origin, call.name)

    def _enter(self, call: Call, instructions: Sequence[Instruction], key_of: Callable[[int], Key]) -> None:
        """Follow the last instructions of a call, which are all of one that does not wait."""
        stopped = _is_stopped(call)
        if not stopped:
            self._check_reads(call, instructions, key_of)
        read = tuple([None if seen is None else self.version(seen.storage) for seen in call.args])
        written = dict.fromkeys([key_of(buffer) for each in instructions for buffer in each.writes])
        flows = [seen is not None and self.depends(seen.storage) and varies(seen.layout.dtype) for seen in call.args]
        if isinstance(call.function, Written) and not call.function.updates:  # `into`: what was there is not read
            flows[0] = False
        for key in written:
            self._write(key, call.origin, call.name)
        written |= self._written.pop(call, {})
        results = tuple([self.version(seen.storage) for seen in call.results])
        if not written and any(seen.storage in {a.storage for a in call.args if a} for seen in call.results):
            return  # the result is an argument, or a part of one
        if not any(flows) or stopped:
            for version in results:
                self._depends.discard(version.memory)
                self._broken.pop(version.memory, None)
            return
        for seen, flowing in zip(call.args, flows, strict=True):
            if flowing and seen is not None and seen.storage in self._broken:
                raise GradientError(
                    f"{call.name} at {describe(call.origin)} reads a value that {self._broken[seen.storage]} has "
                    "written to, and no rule says how that depends on what was there. Write to memory of its own there."
                )
        floating = [varies(seen.layout.dtype) for seen in call.results]
        if not self._has_rule(call):
            raise GradientError(
                f"{call.name} at {describe(call.origin)} has no derivative, and is called with what is differentiated. "
                "Give it a rule (gradient_of), or keep it out: stop_gradient(x)."
            )
        kinds = {seen.layout.dtype.kind for seen in call.results}
        kinds |= {seen.layout.dtype.kind for seen, flowing in zip(call.args, flows, strict=True) if seen and flowing}
        if "c" in kinds and not self._is_rule_of_complex(call):
            raise GradientError(
                f"{call.name} at {describe(call.origin)} has no derivative for complex numbers. Compute with their "
                "parts as real numbers, array.real(x) and array.imag(x), or keep them out: stop_gradient(x)."
            )
        for version, seen, is_float in zip(results, call.results, floating, strict=True):
            if not is_float:
                self._depends.discard(version.memory)
                continue
            if not is_whole(seen):
                raise GradientError(
                    f"{call.name} at {describe(call.origin)} writes to a part of a tensor, or not in the order of its "
                    "memory, which has no derivative. Write to memory of its own, and put the parts together: "
                    "array.concatenate(parts)."
                )
            self._depends.add(version.memory)
            self.whole[version] = seen.layout
        args = tuple([version if flowing else None for version, flowing in zip(read, flows, strict=True)])
        self.calls.append(TracedCall(call, args, read, results))

    def _check_reads(self, call: Call, instructions: Sequence[Instruction], key_of: Callable[[int], Key]) -> None:
        """Raise if a call reads what is differentiated in a way that its rule cannot see.

        Raises:
            GradientError: it is no argument of the call, or an argument has the bits of another type.
        """
        for seen in call.args:
            if seen is None or not self.depends(seen.storage):
                continue
            whole = self.whole.get(self.version(seen.storage))
            if whole is not None and whole.dtype != seen.layout.dtype:
                raise GradientError(
                    f"{call.name} at {describe(call.origin)} reads the bits of what is differentiated as another type, "
                    "which has no derivative. Compute with the values themselves, or keep them out: stop_gradient(x)."
                )
        known: set[Key] = {seen.storage for seen in call.args if seen is not None}
        for instruction in instructions:
            for key in map(key_of, instruction.reads):
                if key not in known and self.depends(key):
                    raise GradientError(
                        f"{call.name} at {describe(call.origin)} reads what is differentiated beside its arguments, "
                        "where its rule cannot see it. Pass each tensor as an argument of its own, or keep it out: "
                        "stop_gradient(x)."
                    )
            known.update(map(key_of, instruction.writes))


def is_whole(seen: Seen) -> bool:
    """True for a tensor that is all of its memory, in C order."""
    return seen.layout.contiguous and seen.layout.nbytes == seen.storage.nbytes


def _all_of(part: Seen) -> Layout:
    """Return the layout of all of a memory of which a tensor is a part, as one axis."""
    dtype = part.layout.dtype
    return contiguous_layout((part.storage.nbytes // dtype.itemsize,), dtype)


def _is_stopped(call: Call) -> bool:
    """True for a call of `stop_gradient`."""
    return getattr(call.function, "__name__", "") == "stop_gradient"


def varies(dtype: "np.dtype[Any]") -> bool:
    """True for elements that change with what they are made of by as little as one likes: not of integers and bools."""
    return dtype.kind not in "iub"


def _shown(instruction: Instruction) -> str:
    """Return an instruction in messages."""
    kernel = getattr(instruction, "kernel", None)
    names = {"CopyDtoH": "to_host()", "HostCall": "host_map", "CopyDtoD": "a copy", "Fill": "a fill"}
    kind = type(instruction).__name__
    return f"kernel {kernel.name!r}" if kernel is not None else names.get(kind, kind)
