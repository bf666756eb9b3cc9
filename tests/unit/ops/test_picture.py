"""Pictures of DAGs and plans: SVG that any XML parser reads, with all that they promise in it."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import CostModel, In, Out, Stream, arange, device, f32, full, kernel, plan_of, zeros, zip_ops
from dagpu.ops import drawing as dag_picture
from dagpu.ops import svg
from dagpu.plans import drawing as memory_picture
from dagpu.plans import drawing as plan_picture
from dagpu.plans.plan import lane_names
from dagpu.plans.prediction import forecast
from dagpu.testing import Plan, Program, nodes_of, schedule
from tests.programs.named_dags import NAMED
from tests.programs.plain_programs import chain, fork_join, launch, output, program, programs


@kernel(cuda="__global__ void touch(Tile<float, 1> y, View<const float, 1> x) {}")
def touch(y: Out[f32], x: In[f32]) -> None: ...


SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def dags(draw: st.DrawFn) -> Any:
    """An op over ops over ops; how often each is taken, and whether it can be run, does not matter here."""
    ops: list[Any] = [zeros((4,))]
    for _ in range(draw(st.integers(0, 25))):
        sources = draw(st.lists(st.sampled_from(ops), max_size=4))
        ops.append(zip_ops(*sources) if sources else zeros((4,)))
    return ops[-1]


def parsed(text: str) -> Any:
    """The root element."""
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return root


def boxes(root: Any) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each bar or node: the rectangles that have a tooltip."""
    found = [rect for group in root.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    corners = [tuple(float(rect.get(name)) for name in ("x", "y", "width", "height")) for rect in found]
    return [(x, y, x + width, y + height) for x, y, width, height in corners]


def tooltips(root: Any) -> list[str]:
    return [title.text for group in root.iter(f"{SVG}g") for title in group.iter(f"{SVG}title")]


def words(root: Any) -> str:
    return " ".join([text.text or "" for text in root.iter(f"{SVG}text")])


def assert_inside(root: Any) -> None:
    """Nothing that has a place is outside the picture, and there is hardly more room than that takes."""
    width, height = float(root.get("width")), float(root.get("height"))
    ends = [right for _, _, right, _ in boxes(root)]
    texts = [float(text.get("x")) + len(text.text or "") * svg.LETTER for text in root.iter(f"{SVG}text")]
    assert width <= max([560.0, *ends, *texts]) + 200
    for left, top, right, bottom in boxes(root):
        assert 0 <= left <= right <= width + 0.2
        assert 0 <= top <= bottom <= height + 0.2


# ---- plans


@settings(max_examples=50)
@given(programs(25))
def test_a_plan_of_any_program_is_drawn(source: Program) -> None:
    """A bar for each instruction, an arrow for each wait, all inside, and well-formed."""
    plan = schedule(source)
    found, root = forecast(plan), parsed(plan.to_svg())
    assert_inside(root)
    assert len(boxes(root)) == len(found.pieces)
    arrows = sum([len(piece.waits) for piece in found.pieces])
    assert len(list(root.iter(f"{SVG}polygon"))) == arrows


@settings(max_examples=50)
@given(programs(25))
def test_bars_of_a_lane_stand_in_its_row_one_after_the_other(source: Program) -> None:
    """Time goes from left to right, and no bar begins before the end of the one before it in its lane."""
    plan = schedule(source)
    lanes: dict[float, float] = {}
    places = boxes(parsed(plan.to_svg()))
    for left, top, right, _ in places:
        assert left >= lanes.get(top, 0) - 2 * plan_picture._NARROWEST  # noqa: SLF001  # no picture shows it
        lanes[top] = right
    assert len(lanes) == len({piece.lane for piece in forecast(plan).pieces})


def test_a_bar_tells_what_it_is() -> None:
    """Number, kernel, lane, time, bytes, what it waits for, and where it was built."""
    plan = plan_of(NAMED["cholesky"]())
    root = parsed(plan.to_svg())
    first, piece = tooltips(root), forecast(plan).pieces
    kernels = [each for each in piece if each.kind == "Launch"]
    assert any(f"#{kernels[0].number} Launch potrf on" in tip for tip in first)
    assert any("waits for #" in tip for tip in first)
    assert any("named_dags.py:" in tip for tip in first)
    assert "Launch" in words(root)
    assert "CopyHtoD" in words(root)


def test_a_long_plan_is_abridged_and_says_so() -> None:
    """The first instructions are drawn, and the rest counted."""
    plan = schedule(chain(1000))
    root = parsed(plan.to_svg())
    assert len(boxes(root)) == plan_picture.MOST_PIECES
    assert f"the {1000 - plan_picture.MOST_PIECES} instructions after these are not drawn" in words(root)


def test_a_plan_is_drawn_by_the_times_of_a_cost_model(tmp_path: Path) -> None:
    """A bar is as long as its instruction is predicted to take."""
    plan = schedule(fork_join(2))
    costs = CostModel(launch=0).declare({"step": 1e-3})
    bars = boxes(parsed(plan.to_svg(costs=costs)))
    assert len({round(right - left) for left, _, right, _ in bars}) == 1
    plan.save_svg(tmp_path / "lanes.svg", costs=costs)
    assert (tmp_path / "lanes.svg").read_text(encoding="utf-8") == plan.to_svg(costs=costs)


def test_plans_that_are_drawn_until_the_same_time_have_one_scale() -> None:
    """However long they are: what takes as long is as wide, and a plan that takes longer is wider than a page."""
    costs = CostModel(launch=0).declare({"step": 1e-3})
    for until in (1e-3, 4e-3, 1.0):
        found = [boxes(parsed(schedule(chain(n)).to_svg(costs=costs, until=until))) for n in (1, 3, 300)]
        assert len({round(bar[2] - bar[0], 1) for bars in found for bar in bars}) == 1
    plan = schedule(chain(3))
    assert plan.to_svg(costs=costs, until=1) != plan.to_svg(costs=costs) == plan.to_svg(costs=costs, until=None)


def test_a_time_that_is_none_is_refused() -> None:
    """A mistake in its type or in its value."""
    wrong: Any = "1 ms"
    for bad in (wrong, True):
        with pytest.raises(
            TypeError, match=r"to_svg at .*test_picture\.py:\d+: until is .* a time in seconds is wanted"
        ):
            schedule(chain(1)).to_svg(until=bad)
    for number in (0, -1e-3, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"until is .* a time in seconds"):
            schedule(chain(1)).to_svg(until=number)


def test_times_that_are_no_cost_model_are_refused() -> None:
    """The message names the place, and says what to write."""
    wrong: Any = {"step": 1e-3}
    with pytest.raises(TypeError, match=r"to_svg at .*test_picture\.py:\d+: costs is .* a CostModel is wanted"):
        schedule(chain(1)).to_svg(costs=wrong)


@settings(max_examples=50)
@given(programs(25))
def test_lanes_stand_device_by_device_and_count_from_zero(source: Program) -> None:
    """From top to bottom: the lanes of a device are neighbours, numbered without gaps in the order of the rows."""
    plan = schedule(source)
    root = parsed(plan.to_svg())
    rows = [tip for tip in tooltips(root) if re.fullmatch(r"\S+/\d+", tip)]
    assert sorted(lane_names(plan)) == sorted(rows)
    wanted = [f"{name}/{n}" for at, name in enumerate(plan.devices) for n in range(lanes_of(plan, at))]
    assert rows == wanted


def lanes_of(plan: Plan, device: int) -> int:
    return sum([lane.device == device for lane in plan.lanes])


class OnStream:
    """A policy that puts all work on one stream of the program's."""

    def __init__(self, stream: Stream) -> None:
        self._lane = stream.lane

    def place(self, program: Program) -> list[Any]:
        return [self._lane] * len(program.instructions)


def test_a_stream_of_the_program_s_is_a_lane_that_says_so() -> None:
    """In tables and pictures it is one of its own, and a tooltip says who opened it."""
    plan = plan_of(zeros((4,)).to_host().schedule(OnStream(device("host").stream())))
    assert lane_names(plan) == ["host:0/own-1"]
    assert any("host:0/own-1: a stream that the program opened" in tip for tip in tooltips(parsed(plan.to_svg())))
    assert "host:0/own-1" in str(plan)


def test_narrow_copies_have_short_names() -> None:
    """An abbreviation that fits, before a long name that is cut."""
    found = words(parsed(plan_of(zip_ops(*[zeros((4,)).to_host() for _ in range(40)])).to_svg())).split()
    assert found.count("CopyDtoH") == 1  # in the legend
    assert "D→H" in found


# ---- memory


@settings(max_examples=50)
@given(programs(25))
def test_the_memory_of_any_plan_is_drawn(source: Program) -> None:
    """A box for each tensor of an arena, inside; two overlap nowhere, since no two have the same bytes at a time."""
    plan = schedule(source)
    root = parsed(plan.memory_to_svg())
    assert_inside(root)
    found = boxes(root)
    assert len(found) == sum([at >= 0 and b.nbytes > 0 for at, b in zip(plan.offsets, plan.buffers, strict=True)])
    near = 2.0  # the least size of a box
    for number, (left, top, right, bottom) in enumerate(found):
        for other_left, other_top, other_right, other_bottom in found[:number]:
            apart = right <= other_left + near or other_right <= left + near
            assert apart or bottom <= other_top + near or other_bottom <= top + near


def test_a_plan_without_temporaries_has_a_small_picture_of_its_memory() -> None:
    """However many instructions it has."""
    root = parsed(schedule(program([launch((), (0,)) for _ in range(100)], [output()])).memory_to_svg())
    assert_inside(root)
    assert boxes(root) == []


def test_a_tensor_in_the_picture_of_the_memory_tells_what_it_is(tmp_path: Path) -> None:
    """Its maker and the place of that, its bytes, and where it lies; and the axes have numbers of both."""
    plan = plan_of(touch.new((1 << 18,), (1 << 16,))(full((1 << 18,), 1.0)).to_host())
    plan.save_memory_svg(tmp_path / "memory.svg")
    text = (tmp_path / "memory.svg").read_text(encoding="utf-8")
    assert text == plan.memory_to_svg()
    root = parsed(text)
    (tip,) = [tip for tip in tooltips(root) if "Launch touch" in tip]
    assert re.match(r"written by #2 Launch touch\n1,048,576 bytes, from byte [\d,]+ of the arena on\nbuilt at .*", tip)
    assert {"#1", "#2", "#3", "1 MiB", "2 MiB", "instruction"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_the_memory_of_a_large_plan_is_abridged_and_says_so() -> None:
    """The first tensors are drawn, and the rest counted."""
    plan = schedule(chain(1000))
    root = parsed(plan.memory_to_svg())
    assert len(boxes(root)) == memory_picture.MOST_TENSORS
    assert "tensors after these are not drawn" in words(root)


# ---- DAGs


@pytest.mark.parametrize("name", NAMED)
def test_named_dags_and_their_plans_are_drawn(name: str, tmp_path: Path) -> None:
    """The named DAGs and their plans are drawn, as files and in a notebook."""
    op = NAMED[name]()
    for drawn in (op, plan_of(op)):
        path = tmp_path / "picture.svg"
        drawn.save_svg(path)
        text = path.read_text(encoding="utf-8")
        assert text == drawn.to_svg() == drawn._repr_svg_()
        assert drawn._repr_html_() == svg.in_page(text)
        assert_inside(parsed(text))


@given(dags())
def test_a_dag_of_any_shape_is_drawn(op: Any) -> None:
    """A box for each op, no two of which overlap, and each source above what takes it."""
    root = parsed(op.to_svg())
    assert_inside(root)
    found = boxes(root)
    assert len(found) == len(nodes_of(op)[: dag_picture.MOST_OPS])
    for number, (left, top, right, bottom) in enumerate(found):
        for other_left, other_top, other_right, other_bottom in found[:number]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart


def test_sources_stand_above_what_takes_them() -> None:
    """Data flows downwards, the result is at the bottom."""
    op = zip_ops(zeros((4,)), arange(4).to_host())
    root = parsed(op.to_svg())
    place = {tip.split("\n")[0]: top for tip, (_, top, _, _) in zip(tooltips(root), boxes(root), strict=True)}
    assert place["zip_ops"] > place["to_host"] > min(place.values())
    assert len(list(root.iter(f"{SVG}polygon"))) == 3


def test_plumbing_is_a_port_of_its_launch() -> None:
    """Not a box of its own: a tab at the edge of the launch, which tells what it is."""
    middle = touch(touch.new((8,), (4,))(zeros((8,))).partition((2,)), arange(8)).first()
    op = zip_ops(touch(middle, arange(8)).first().unpartition(), zeros((8,)).partition((8,)))
    root = parsed(op.to_svg())
    tips = [tip.split("\n")[0] for tip in tooltips(root)]
    ports = ["partition((4,))", "partition((2,))", "first", "first, unpartition", "first, unpartition"]
    assert sorted(tip for tip in tips if "fir" in tip or "part" in tip) == sorted([*ports, "partition((8,))"])
    assert tips.count("touch") == 3
    place = dict(zip(tips, boxes(root), strict=True))
    for tip in ports:
        left, top, right, bottom = place[tip]
        assert right - left < 20
        assert bottom - top < 10
        edges = [y for _, upper, _, lower in boxes(root) if lower - upper > 20 for y in (upper, lower)]
        assert top in edges or bottom in edges
    assert place["partition((8,))"][3] - place["partition((8,))"][1] > 20  # no launch takes it


def test_the_port_of_the_result_is_drawn() -> None:
    """Of an op that ends by taking the output out."""
    assert "first, unpartition" in tooltips(parsed(touch.new((8,), (4,))(zeros((8,))).to_svg()))


def test_a_node_tells_where_it_was_built() -> None:
    """File and line in full, as a tooltip."""
    assert any("test_picture.py:" in tip for tip in tooltips(parsed(zeros((4,)).to_svg())))


def test_a_large_dag_is_abridged_and_says_so() -> None:
    """The ops nearest to the result are drawn, the rest counted, and the cut shown."""
    op: Any = zeros((4,))
    for _ in range(5000):
        op = op.map(lambda t: t)
    root = parsed(op.to_svg())
    assert len(boxes(root)) == dag_picture.MOST_OPS
    assert f"{5001 - dag_picture.MOST_OPS:,} of 5,001 ops" in words(root)
    assert "…" in words(root)


# ---- SVG


@given(st.text())
def test_any_text_stands_in_a_picture(told: str) -> None:
    """Characters that XML forbids are replaced; the rest come back as they were."""
    root = parsed(svg.document(10, 10, told, [svg.group([svg.text(1, 1, told)], told)]))
    (tip,) = tooltips(root)
    legal = svg._FORBIDDEN.sub("?", told)  # noqa: SLF001  # no picture shows it
    assert (tip or "") == legal


def test_a_picture_is_readable_on_light_and_dark() -> None:
    """Both sets of colours are there, the page's own background among them; classes are the package's own."""
    text = full((2,), 1.0).to_svg()
    style = next(parsed(text).iter(f"{SVG}style")).text
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    for name in ("page", "text", "on", "edge", "fill-Fill"):
        assert f".dagpu-{name}{{" in light
        assert f".dagpu-{name}{{" in dark
        for theme in ("[data-theme=light]", "[data-theme=dark]", "[data-jp-theme-light=true]"):
            assert re.search(rf"{re.escape(theme)}[^{{}}]* \.dagpu-{name}{{", dark)
    used = {name for element in parsed(text).iter() for name in (element.get("class") or "").split()}
    assert used
    assert all(name.startswith("dagpu-") for name in used)


@pytest.mark.parametrize("light", [True, False])
def test_text_can_be_told_from_what_it_stands_on(light: bool) -> None:
    """The contrast that WCAG 2.1 asks of graphics and large text is kept by all: 3 to 1; of body text, 4.5 to 1."""
    page, ink = ("#ffffff", "#1c2128") if light else ("#16181d", "#e4e8ee")
    assert contrast(page, ink) >= 4.5
    for colours in svg.KINDS.values():
        assert contrast(colours[not light], "#ffffff" if light else "#101216") >= 3.0


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' relative luminance, as WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)
