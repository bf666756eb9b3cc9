"""The layout of pictures: boxes and labels stand apart, and no arrow is drawn over one."""

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import In, Out, f32, kernel, plan_of, zeros, zip_ops
from dagpu.ops import drawing, svg
from dagpu.testing import Program, schedule
from tests.programs.named_dags import NAMED
from tests.programs.plain_programs import programs

SVG = "{http://www.w3.org/2000/svg}"
NEAR = 0.15
"""Coordinates are rounded to tenths of a pixel."""


@kernel(cuda="__global__ void both(Tile<float, 1> y, Tile<float, 1> z, View<const float, 1> x) {}")
def both(y: Out[f32], z: Out[f32], x: In[f32]) -> None: ...


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """True if the two have more in common than an edge."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > NEAR and down > NEAR

    def has(self, x: float, y: float) -> bool:
        return self.left + NEAR < x < self.right - NEAR and self.top + NEAR < y < self.bottom - NEAR


def rectangles(root: Any) -> list[Box]:
    """The boxes of nodes, ports and bars: the rectangles with a tooltip."""
    found = [rect for group in root.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    corners = [[float(rect.get(name)) for name in ("x", "y", "width", "height")] for rect in found]
    return [Box(x, y, x + width, y + height) for x, y, width, height in corners]


def labels(root: Any) -> dict[Box, str]:
    """The boxes of all texts, as wide as their letters, with the words."""
    found = {}
    for text in root.iter(f"{SVG}text"):
        width = len(text.text or "") * svg.LETTER
        x, y = float(text.get("x")), float(text.get("y"))
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor")]
        found[Box(left, y - 9, left + width, y + 2)] = text.text
    return found


def trails(root: Any) -> Iterator[list[tuple[float, float]]]:
    """Each arrow as points along it, from its tail to its tip."""
    for path in root.iter(f"{SVG}path"):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        trail = [points[0]]
        for at in range(0, len(points) - 1, 3):
            trail += [bezier(points[at : at + 4], step / 16) for step in range(1, 17)]
        yield trail


def bezier(points: list[tuple[float, float]], t: float) -> tuple[float, float]:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, points, strict=True)) for axis in (0, 1))
    return x, y


def assert_apart(root: Any) -> None:
    """Boxes stand apart from each other. A label is in one box and no other, or in none, and stands apart from the
    other labels and inside the picture."""
    boxes, words = rectangles(root), labels(root)
    for one, other in combinations(boxes, 2):
        assert not one.meets(other)
    for one, other in combinations(words, 2):
        assert not one.meets(other), (words[one], words[other])
    for label, said in words.items():
        inside = [box for box in boxes if box.meets(label)]
        assert len(inside) <= 1, said
        for box in inside:
            assert box.left <= label.left + 2
            assert label.right - 2 <= box.right
        assert label.left >= 0
        assert label.right <= float(root.get("width")) + NEAR, said


def assert_edges_avoid_boxes(root: Any) -> None:
    """No point of an edge of a DAG is inside a box or a port, and every edge leads downwards."""
    boxes = rectangles(root)
    for trail in trails(root):
        assert all(y <= below + NEAR for (_, y), (_, below) in pairwise(trail))
        for x, y in trail:
            assert not any(box.has(x, y) for box in boxes)


def assert_arrows_are_behind_bars(root: Any) -> None:
    """The bars of a plan are drawn after all arrows, so none covers a bar. Both ends of an arrow are at the edge of a
    bar, where they are seen."""
    body = list(root)
    bars = [at for at, element in enumerate(body) if element.find(f"{SVG}rect") is not None]
    arrows = [at for at, element in enumerate(body) if element.find(f"{SVG}path") is not None]
    assert not arrows or max(arrows) < min(bars)
    boxes = rectangles(root)
    for trail in trails(root):
        for x, y in (trail[0], trail[-1]):
            assert not any(box.has(x, y) for box in boxes)
            near = [box for box in boxes if box.left - 1 <= x <= box.right + 1]
            assert any(min(abs(y - box.top), abs(y - box.bottom)) < 1 for box in near)


@st.composite
def dags(draw: st.DrawFn) -> Any:
    """An op over ops over ops, some of them launches with ports on both sides."""
    ops: list[Any] = [zeros((4,))]
    for _ in range(draw(st.integers(0, 20))):
        sources = draw(st.lists(st.sampled_from(ops), max_size=5))
        kind = draw(st.integers(0, 3))
        if not sources:
            ops.append(zeros((4,)))
        elif kind:
            ops.append(zip_ops(*sources))
        else:
            y, z = (zeros((4,)).partition((4,)) for _ in range(2))
            ops.append(both(y, z, sources[0]).first().unpartition())
    return ops[-1]


@settings(max_examples=60)
@given(dags())
def test_the_parts_of_a_dag_stand_apart(op: Any) -> None:
    """Of any shape: boxes, ports and labels are disjoint, and edges lead around all boxes."""
    root = ET.fromstring(op.to_svg())
    assert_apart(root)
    assert_edges_avoid_boxes(root)


@settings(max_examples=40)
@given(programs(25))
def test_the_parts_of_a_plan_stand_apart(source: Program) -> None:
    """Of any program: bars and labels are disjoint, and arrows pass behind bars."""
    root = ET.fromstring(schedule(source).to_svg())
    assert_apart(root)
    assert_arrows_are_behind_bars(root)


@pytest.mark.parametrize("name", NAMED)
def test_the_parts_of_named_pictures_stand_apart(name: str) -> None:
    """The named DAGs and their plans."""
    op = NAMED[name]()
    drawn, lanes = ET.fromstring(op.to_svg()), ET.fromstring(plan_of(op).to_svg())
    assert_apart(drawn)
    assert_edges_avoid_boxes(drawn)
    assert_apart(lanes)
    assert_arrows_are_behind_bars(lanes)


def test_an_op_of_many_sources_is_wide_enough_for_them() -> None:
    """Each edge arrives at a place of its own."""
    root = ET.fromstring(zip_ops(*[zeros((4,)) for _ in range(40)]).to_svg())
    ends = sorted(trail[-1][0] for trail in trails(root))
    assert len(ends) == 40
    assert all(right - left > drawing._PORT[0] for left, right in pairwise(ends))  # noqa: SLF001  # a port's width
