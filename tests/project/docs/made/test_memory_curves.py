"""The picture of what steps take longer within fewer bytes has each step of the benchmark, by its kept result."""

from xml.etree import ElementTree as ET

from benchmarks.support.taped_steps import SHAPES
from tests.project.docs.made.memory_curves import NAME, curves, drawn
from tests.support.doc_pages import DOCS, OF_RESULTS


def test_the_kept_result_has_each_step_and_keeps_the_goals() -> None:
    """No step takes less than the bound; at half of the bytes at most 1.3 times that, at a third 1.6 times."""
    found = curves()
    assert list(found) == list(SHAPES)
    for lines in found.values():
        bound = dict(lines["bound, %"])
        for limit, longer in lines["longer, %"]:
            assert longer >= bound[limit] - 0.01
        longer_at = dict(lines["longer, %"])
        assert longer_at[50] <= 1.3 * bound[50]
        assert longer_at[33] <= 1.6 * bound[33]


def test_it_is_quicker_than_checkpoint_sequential_wherever_that_reaches() -> None:
    """Of each step that is a sequence of layers."""
    sequences = [lines for lines in curves().values() if "checkpoint_sequential, %" in lines]
    assert len(sequences) == 4
    for lines in sequences:
        longer = dict(lines["longer, %"])
        assert all(longer[limit] < rule for limit, rule in lines["checkpoint_sequential, %"])


def test_the_picture_is_svg_that_the_guide_shows() -> None:
    """With a chart and its numbers for each step."""
    picture = ET.fromstring(drawn())
    words = "".join(picture.itertext())
    assert all(step in words for step in SHAPES)
    assert f"_static/generated/{NAME}" in (DOCS / "guides" / "memory.md").read_text(encoding="utf-8")
    assert {NAME} == OF_RESULTS
    assert "memory_curves.drawn()" in (DOCS / "_ext" / "generated.py").read_text(encoding="utf-8")
