"""Steps whose values are read again in the opposite order, as programs: chains, transformer blocks, U-Nets, a ResNet,
and pipelines of transforms and of scatters without a gradient. And what they are compared with: a bound, which no
schedule within some bytes is below, and the rule of PyTorch's `checkpoint_sequential`.

The programs have the buffers of f32 tensors, and the times of a GPU of 2 TB/s and 50 Tflop/s: no kernel is run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple, final

from dagpu import CostModel, SingleStream
from dagpu.plans.plan import written_over
from dagpu.plans.program import Buffer, Instruction, Launch, Program, Role, label
from dagpu.plans.recomputing import values_of
from dagpu.plans.retention import Retention
from tests.programs.plain_programs import launch

_BYTE: Final = 1 / 2e12
_FLOP: Final = 1 / 50e12
_LAUNCH: Final = 2e-6


class _Made(NamedTuple):
    """A call of the forward pass."""

    name: str
    inputs: tuple[int, ...]
    out: int
    weight: int
    """Bytes of its weight; 0 for none."""
    flops: float
    reads_output: bool
    """True if its derivative is by its output, and not by its inputs."""


@final
@dataclass(slots=True)
class Tape:
    """A program under construction, with what its backward pass needs."""

    buffers: list[Buffer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    made: list[_Made] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    """The results of layers that follow each other, if all of the forward pass is a sequence of such."""

    def buffer(self, nbytes: int, role: Role = Role.TEMPORARY) -> int:
        """Add a buffer, and return its number."""
        self.buffers.append(Buffer(nbytes, 0, role))
        return len(self.buffers) - 1

    def run(self, name: str, reads: tuple[int, ...], nbytes: int, flops: float = 0.0, *, result: bool = False) -> int:
        """Add a launch that writes a new buffer, and return that."""
        out = self.buffer(nbytes, Role.OUTPUT if result else Role.TEMPORARY)
        moved = nbytes + sum([self.buffers[each].nbytes for each in reads])
        seconds = max(moved * _BYTE, flops * _FLOP)
        label = f"{name} {seconds * 1e9:.0f}"
        each = launch(reads, (out,))
        self.instructions.append(replace(each, kernel=replace(each.kernel, name=label)))
        self.times[label] = seconds
        return out

    def call(
        self,
        name: str,
        inputs: tuple[int, ...],
        nbytes: int,
        flops: float = 0.0,
        weight: int = 0,
        by_output: bool = False,
    ) -> int:
        """Add a call of the forward pass, and return its result."""
        weights = (self.buffer(weight, Role.INPUT),) if weight else ()
        out = self.run(name, inputs + weights, nbytes, flops)
        self.made.append(_Made(name, inputs, out, weight, flops, by_output))
        return out

    def backward(self, last: int) -> None:
        """Add the backward pass, from the mean of a value."""
        loss = self.run("loss", (last,), 4)
        slopes = {last: self.run("dloss", (loss,), self.buffers[last].nbytes)}
        for made in reversed(self.made):
            slope = slopes.pop(made.out)
            kept = (made.out,) if made.reads_output else made.inputs
            if made.weight:
                self.run(f"w {made.name}", (slope, *made.inputs), made.weight, made.flops, result=True)
            for each in dict.fromkeys(made.inputs):
                if self.buffers[each].role is Role.INPUT:
                    continue
                reads = (slope,) if made.weight or made.name == "add" else (slope, *kept)
                found = self.run(f"d {made.name}", reads, self.buffers[each].nbytes, made.flops)
                if each in slopes:
                    found = self.run("sum", (slopes[each], found), self.buffers[each].nbytes)
                slopes[each] = found

    def program(self) -> tuple[Program, CostModel]:
        """Return the program, and a model with its times."""
        instructions = tuple(self.instructions)
        made = Program(("cuda:0",), tuple(self.buffers), instructions, (SingleStream(),), (0,) * len(instructions))
        return made, CostModel(launch=_LAUNCH, bandwidth=1 / _BYTE).declare(self.times)


def layers(depth: int) -> Tape:
    """Layers of 8192 x 512: a product and an element-wise function each."""
    tape, nbytes, flops = Tape(), 8192 * 512 * 4, 2.0 * 8192 * 512 * 512
    x = tape.buffer(nbytes, Role.INPUT)
    for _ in range(depth):
        x = tape.call("act", (tape.call("product", (x,), nbytes, flops, 512 * 512 * 4),), nbytes)
        tape.borders.append(x)
    tape.backward(x)
    return tape


def blocks(depth: int) -> Tape:
    """Transformer blocks: 8 sequences of 512, width 512, 8 heads."""
    tape, tokens, width, heads, long = Tape(), 4096, 512, 8, 512
    nbytes, scores = tokens * width * 4, tokens * heads * long * 4
    square = width * width * 4
    x = tape.buffer(nbytes, Role.INPUT)
    for _ in range(depth):
        normal = tape.call("norm", (x,), nbytes)
        query, key, value = (tape.call("product", (normal,), nbytes, 2.0 * tokens * width**2, square) for _ in range(3))
        logits = tape.call("scores", (query, key), scores, 2.0 * tokens * long * width)
        weights = tape.call("softmax", (logits,), scores, by_output=True)
        mixed = tape.call("mix", (weights, value), nbytes, 2.0 * tokens * long * width)
        x = tape.call("add", (x, tape.call("product", (mixed,), nbytes, 2.0 * tokens * width**2, square)), nbytes)
        normal = tape.call("norm", (x,), nbytes)
        wide = tape.call("product", (normal,), 4 * nbytes, 8.0 * tokens * width**2, 4 * square)
        narrow = tape.call("gelu", (wide,), 4 * nbytes)
        x = tape.call("add", (x, tape.call("product", (narrow,), nbytes, 8.0 * tokens * width**2, 4 * square)), nbytes)
        tape.borders.append(x)
    tape.backward(x)
    return tape


def unet(depth: int) -> Tape:
    """Half of the layers go down, half go up; each of these also reads the one of its level that went down."""
    tape, nbytes = Tape(), 64 << 20
    x = tape.buffer(nbytes, Role.INPUT)
    skips: list[tuple[int, int]] = []
    for level in range(depth // 2):
        size = nbytes >> (level * 6 // depth)
        x = tape.call("act", (tape.call("convolve", (x,), size, size * 160.0, 1 << 20),), size)
        skips.append((x, size))
    for skip, size in reversed(skips):
        joined = tape.call("join", (x, skip), size)
        x = tape.call("act", (tape.call("convolve", (joined,), size, size * 160.0, 1 << 20),), size)
    tape.backward(x)
    return tape


def resnet() -> Tape:
    """ResNet-50 (K. He et al., CVPR 2016) for 32 images of 224 x 224: convolutions, normalisations and ReLUs."""
    tape, images = Tape(), 32

    def convolved(x: int, edge: int, inputs: int, outputs: int, size: int, *, relu: bool = True) -> int:
        """Convolve to images of `edge` x `edge`, normalise, and cut off at 0."""
        pixels = images * edge * edge
        nbytes, weight = pixels * outputs * 4, inputs * outputs * size * size * 4
        x = tape.call("convolve", (x,), nbytes, 2.0 * pixels * inputs * outputs * size * size, weight)
        x = tape.call("norm", (x,), nbytes)
        return tape.call("relu", (x,), nbytes, by_output=True) if relu else x

    x = convolved(tape.buffer(images * 224 * 224 * 3 * 4, Role.INPUT), 112, 3, 64, 7)
    x, edge, inputs = tape.call("pool", (x,), images * 56 * 56 * 64 * 4), 56, 64
    tape.borders.append(x)
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(count):
            before, shortcut, stride = edge, x, 2 if stage and not block else 1
            edge //= stride
            if not block:
                shortcut = convolved(x, edge, inputs, 4 * width, 1, relu=False)
            found = convolved(convolved(x, before, inputs, width, 1), edge, width, width, 3)
            found = convolved(found, edge, width, 4 * width, 1, relu=False)
            inputs, nbytes = 4 * width, images * edge * edge * 4 * width * 4
            x = tape.call("relu", (tape.call("add", (found, shortcut), nbytes),), nbytes, by_output=True)
            tape.borders.append(x)
    x = tape.call("product", (tape.call("mean", (x,), images * 2048 * 4),), images * 1000 * 4, weight=2048 * 1000 * 4)
    tape.backward(x)
    return tape


def transforms(count: int) -> Tape:
    """No gradient: transforms of inputs, the sum of their squares, and each of them again, divided by that and
    scattered into one result."""
    tape, nbytes = Tape(), 16 << 20
    inputs = [tape.buffer(nbytes, Role.INPUT) for _ in range(count)]
    found = [tape.run("fft", (each,), nbytes, nbytes * 12.0) for each in inputs]
    total = tape.run("square", (found[0],), nbytes)
    for each in found[1:]:
        total = tape.run("add square", (total, each), nbytes)
    result = tape.run("zeros", (), nbytes)
    for each in found:
        result = tape.run("scatter", (result, tape.run("divide", (each, total), nbytes)), nbytes)
    tape.run("inverse", (result,), nbytes, nbytes * 12.0, result=True)
    return tape


def scatters(count: int) -> Tape:
    """No gradient: points scattered into grids, each smoothed; the largest of all; and what the points read of their
    grid, divided by that, scattered into one result."""
    tape, nbytes = Tape(), 16 << 20
    points = [tape.buffer(nbytes, Role.INPUT) for _ in range(count)]
    grids = [tape.run("smooth", (tape.run("scatter", (each,), nbytes),), nbytes, nbytes * 12.0) for each in points]
    most = tape.run("square", (grids[0],), nbytes)
    for each in grids[1:]:
        most = tape.run("largest", (most, each), nbytes)
    result = tape.run("zeros", (), nbytes)
    for each, grid in zip(points, grids, strict=True):
        result = tape.run("add", (result, tape.run("take", (each, grid, most), nbytes)), nbytes)
    tape.run("inverse", (result,), nbytes, nbytes * 12.0, result=True)
    return tape


SHAPES: Final[dict[str, Callable[[], Tape]]] = {
    "chain of 48": lambda: layers(48),
    "12 blocks": lambda: blocks(12),
    "24 blocks": lambda: blocks(24),
    "U-Net of 24": lambda: unet(24),
    "ResNet-50": resnet,
    "16 transforms": lambda: transforms(16),
    "16 scatters": lambda: scatters(16),
}


# ---- the bound


def least_work(program: Program, times: Sequence[float], nbytes: int) -> float:
    """Return seconds of work that no schedule within so many bytes of temporaries is below.

    While an instruction runs, what it reads and writes is alive, and of what was made before it and is read after it at
    most as much as is left of `nbytes`. What is not alive is made again at least once, from what could be alive, at the
    least cost: a fractional knapsack. What several of these need is shared out among them. The bound is the largest
    over all instructions. It supposes that they first run in the program's order, and ignores the memory that making
    again needs, so it is weak for few bytes.
    """
    maker: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, each in enumerate(program.instructions):
        for buffer in each.reads:
            last[buffer] = index
        for buffer in each.writes:
            maker.setdefault(buffer, index)
    own = {b for b in maker if program.buffers[b].role is Role.TEMPORARY}
    extra = 0.0
    for turn, each in enumerate(program.instructions):
        beside = own.intersection((*each.reads, *each.writes))
        room = nbytes - sum([program.buffers[buffer].nbytes for buffer in beside])
        if type(each) is Launch:
            room += written_over(each, program)
        needed = [b for b in own - beside if maker[b] < turn < last.get(b, -1)]
        if sum([program.buffers[buffer].nbytes for buffer in needed]) > room:
            extra = max(extra, _extra(program, times, room, needed, beside, maker))
    return sum(times) + extra


def _extra(
    program: Program, times: Sequence[float], room: int, needed: Sequence[int], beside: set[int], maker: dict[int, int]
) -> float:
    """Return the least seconds in which what is needed later and does not fit is made again."""
    kept, makes = beside.union(needed), list[set[int]]()
    for buffer in needed:
        stack, seen = [buffer], {buffer}
        while stack:
            for each in program.instructions[maker[stack.pop()]].reads:
                if each in maker and each not in kept and each not in seen:
                    seen.add(each)
                    stack.append(each)
        makes.append({maker[each] for each in seen})
    shares = Counter(chain.from_iterable(makes))
    items = [
        (sum([times[at] / shares[at] for at in found]), program.buffers[buffer].nbytes)
        for buffer, found in zip(needed, makes, strict=True)
    ]
    over, seconds = sum([size for _, size in items]) - room, 0.0
    for price, size in sorted(items, key=lambda item: item[0] / max(item[1], 1)):
        if over <= 0:
            break
        seconds += price * min(1.0, over / max(size, 1))
        over -= size
    return seconds


# ---- PyTorch's rule


def checkpointed(tape: Tape, segments: int) -> tuple[int, float]:
    """Return the most bytes of temporaries, and the seconds of work, of a step by the rule of `checkpoint_sequential`:
    of all segments but the last one only what enters them is kept, and the rest is made again when the first of it is
    read, in the order of the backward pass."""
    program, costs = tape.program()
    values = values_of(program, costs.times(program))
    state = Retention(values)
    loss = next(at for at, each in enumerate(program.instructions) if label(each).startswith("Launch loss"))
    size = len(tape.borders) // segments
    kept = {tape.borders[at] for at in range(size - 1, size * segments, size)}
    border = state.maker[tape.borders[size * (segments - 1) - 1]]
    for value in sorted(range(len(values.sizes)), key=state.maker.__getitem__, reverse=True):
        if values.may_end[value] and state.maker[value] < border and value not in kept:
            for before, use in list(state.gaps(value)):
                if before < loss < use:
                    state.end(value, before, use)
    return int(state.held().max()), state.work
