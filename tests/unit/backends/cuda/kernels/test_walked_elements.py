"""A generated kernel counts in 64 bits where anything that it counts needs them: the elements of an argument, or those
of broadcast arguments that no argument has by itself.

The oracle reads the CUDA text of a launch: every product of extents in it, with the extents of the launch's arguments.
"""

import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest

from dagpu import array, expr, f32, i64, plan_of, zeros
from dagpu.backends.kernel_text.launch_params import NARROW, WIDE, variant_for
from dagpu.kernels.cuda_lexer import scan_declarations, split_at_commas, tokenize
from dagpu.testing import Execute, KernelSpec, Launch, Tiles, View, nodes_of
from tests.project.kernels.generated_kernels import generated_kernels

EXTENT = r"(\w+)\.extent\((\d+)\)"
PRODUCT = re.compile(rf"{EXTENT}(?: \* {EXTENT})+")
N = 65_536
"""Two axes of this extent have 2^32 elements."""
FEW = 46_000
"""Two axes of this extent have fewer than 2^31."""

times = expr(f32, f32)(lambda x, y: x * y)
three = expr(f32, f32, f32)(lambda x, y, z: x * y + z)
count = expr(f32, f32)(lambda x, y: (x < y).to(i64))
differ = expr(f32, f32)(lambda x, y: x != y)


def formals(spec: KernelSpec) -> list[str]:
    """Return the names of the parameters in CUDA, which are not those in Python."""
    tokens, aliases = tokenize(spec.cuda)
    (declared,) = [each for each in scan_declarations(tokens, aliases) if each.name == spec.name]
    return [part[-1].text for part in split_at_commas(declared.inside or [])]


def products(spec: KernelSpec) -> Iterator[list[tuple[str, int]]]:
    """Yield the products of extents in a kernel's text, each as the parameters and axes of its factors."""
    for found in PRODUCT.finditer(spec.cuda):
        yield [(name, int(axis)) for name, axis in re.findall(EXTENT, found.group())]


def launches(op: Any) -> list[Launch]:
    steps = plan_of(op).steps
    found = [step.instruction for step in steps if isinstance(step, Execute)]
    return [instruction for instruction in found if isinstance(instruction, Launch)]


def largest(launch: Launch) -> int:
    """Return the largest number that a launch counts to, by its text and the layouts of its arguments."""
    names, most, shapes = formals(launch.kernel), 0, dict[str, tuple[int, ...]]()
    for name, argument in zip(names, launch.args, strict=True):
        if isinstance(argument, View | Tiles):
            layout = argument.layout if isinstance(argument, View) else argument.view.layout
            shapes[name] = layout.shape
            most = max(most, layout.size)
    found = [prod([shapes[name][axis] for name, axis in factors]) for factors in products(launch.kernel)]
    return max(most, *found, 0)


ROWS: dict[str, Callable[[int], Any]] = {
    **{
        name: lambda n, name=name: getattr(times, name)()(zeros((n, 1)), zeros((1, n)))  # type: ignore[misc]  # reason: a default binds the name
        for name in ("sum", "prod", "mean", "norm", "amin", "amax")
    },
    "any": lambda n: differ.any()(zeros((n, 1)), zeros((1, n))),
    "all": lambda n: differ.all()(zeros((n, 1)), zeros((1, n))),
    "count in i64": lambda n: count.sum()(zeros((n, 1)), zeros((1, n))),
    "batched sum": lambda n: times.sum((1, 2))(zeros((3, n, 1)), zeros((3, 1, n))),
    "batched mean across": lambda n: times.mean((0, 1))(zeros((n, 1, 3)), zeros((1, n, 3))),
    "strided": lambda n: times.sum()(zeros((2 * n, 1)).sync().slice(slice(None, None, 2)), zeros((1, n))),
    "three arguments": lambda n: three.sum()(zeros((n, 1, 1)), zeros((1, n // 256, 1)), zeros((1, 1, 256))),
}


@pytest.mark.parametrize("extent", [FEW, N])
@pytest.mark.parametrize("name", ROWS)
def test_what_a_reduction_walks_decides(name: str, extent: int) -> None:
    """Each argument has some hundred KiB. The kernel that walks 2^31 elements of a row or more counts in 64 bits, and
    no other one does."""
    found = launches(ROWS[name](extent))
    assert found
    for launch in found:
        wide = largest(launch) >= NARROW
        assert bool(variant_for(launch, False) & WIDE) == wide, (launch.kernel.name, largest(launch))
    assert any(largest(launch) >= NARROW for launch in found) == (extent == N)


def test_every_product_of_extents_is_declared() -> None:
    """Of every kernel that dagpu generates: a product of extents is of one argument, whose own size bounds it, or part
    of one that the kernel declares to walk."""
    specs = [*generated_kernels(), *broadcast_kernels()]
    several = 0
    for spec in specs:
        names = formals(spec) if PRODUCT.search(spec.cuda) else []
        for factors in products(spec):
            if len({name for name, _ in factors}) > 1:
                several += 1
                places = {(names.index(name), axis) for name, axis in factors}
                assert any(places <= set(walked) for walked in spec.walked), (spec.name, factors)
    assert several, "no kernel here walks several arguments"
    assert not [spec.name for spec in specs if re.search(r"\.size\(\) \*|\* \w+\.size\(\)", spec.cuda)]


def broadcast_kernels() -> Iterator[KernelSpec]:
    """Yield kernels of arguments that follow different axes, of which no one follows all."""
    ops = [make(8) for name, make in ROWS.items() if name != "three arguments"]
    ops.append(three.sum()(zeros((8, 1, 1)), zeros((1, 8, 1)), zeros((1, 1, 8))))
    ops.append(times.softmax(1)(zeros((8, 1, 1, 4)), zeros((1, 9, 7, 1))))
    ops.append(three.softmax(3)(zeros((8, 1, 1, 4)), zeros((1, 9, 1, 4)), zeros((1, 1, 7, 4))))
    ops.append(times.softmax(2)(zeros((8, 1, 70_000)), zeros((1, 9, 1))))
    ops.append(array.var(zeros((8, 9, 7)), (0, 2)))
    for op in ops:
        yield from [node.kernel for node in nodes_of(op) if hasattr(node, "kernel") and node.kernel.cuda]


@pytest.mark.parametrize("extent", [FEW, N])
def test_rows_of_a_softmax_are_counted_where_its_output_has_them(extent: int) -> None:
    """The softmax of broadcast arguments writes as many elements as it walks."""
    for launch in launches(times.softmax(1)(zeros((extent, 1, 1)), zeros((1, 3, extent)))):
        assert bool(variant_for(launch, False) & WIDE) == (largest(launch) >= NARROW)
