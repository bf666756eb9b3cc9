"""Origins: errors and notes name the user's line that built the op."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dagpu
from dagpu import (
    DeviceOp,
    KernelArgumentError,
    MovedError,
    PartitionError,
    ShapeError,
    from_host,
    ones,
    record_origins,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.unit.tracing.traced_ops import Op, bump, bumped, line, stop

UNTYPED: Callable[[Any], Op] = value
"""`value`, for mistakes that a checker would see."""


def test_every_op_knows_its_line() -> None:
    """`repr` names the user's file and line, of fluent methods and functions alike."""
    for op, here in (
        (ones((2,)), line()),
        (value(1).map(lambda x: x), line()),
        (value(1).then(value), line()),
        (zip_ops(value(1), value(2)), line()),
        (zip_ops(value(1), value(2)).unzip()[1], line()),
        (ones((2,)).shared(), line()),
        (ones((2,)).partition((1,)), line()),
        (ones((2,)).to_host(), line()),
        (bump(zeros((2,)).partition((2,)), 1.0), line()),
        (value(1).on("host:0"), line()),
        (value(1).host_map(abs), line()),
        (from_host(np.ones(2)), line()),
    ):
        assert f"{__file__}:{here}" in repr(op)


def test_an_error_in_a_closure_keeps_its_type_and_gets_a_note() -> None:
    """The note says which closure of which line: `map`, `then`, `inspect`, `host_map`, a kernel's body."""
    for op, here, word in (
        (value(1).map(stop), line(), ".map"),
        (value(1).then(stop), line(), ".then"),
        (value(1).inspect(stop), line(), ".inspect"),
        (value(1).host_map(stop), line(), "host_map"),
        (value(1).host_map(lambda x: x).map(stop), line(), ".map"),
    ):
        with pytest.raises(ValueError, match="stop") as caught:
            op.sync()
        notes = caught.value.__notes__
        assert any(f"{__file__}:{here}" in note and word in note for note in notes), notes


def test_an_error_in_a_fluent_method_says_where_it_was_built() -> None:
    """The error of a lazy method names the line where the user wrote it."""
    for op, here, error in (
        (ones((4,)).partition((3,)), line(), PartitionError),
        (ones((4,)).reshape((3,)), line(), ShapeError),
        (bump(zeros((2,)).partition((2,)), UNTYPED("x")), line(), KernelArgumentError),
        (UNTYPED((1,)).to_host(), line(), ShapeError),
    ):
        with pytest.raises(error) as caught:
            op.sync()
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"{__file__}:{here}" in text, text


def test_explain_and_to_dot_show_lines() -> None:
    """A plan's rows and a drawing's nodes say where in the user's file they come from."""
    op, here = ones((2,)).to_host(), line()
    assert f"test_trace_origins.py:{here}" in op.explain()
    assert f"test_trace_origins.py:{here}" in op.to_dot()


@given(st.text(st.sampled_from('a"\\\n\rn;]{}'), min_size=1))
def test_a_label_of_a_dot_graph_holds_any_name(name: str) -> None:
    """The file of an op may be called anything: quotation marks, backslashes and line ends are escaped."""
    found: dict[str, Any] = {"ones": ones}
    exec(compile("op = ones((4,))", f"/tmp/{name}", "exec"), found)
    (label,) = re.findall(r'label="((?:[^"\\\n]|\\.)*)"\];$', found["op"].to_dot(), re.MULTILINE)
    meant = {"n": "\n", "r": "\r"}
    assert re.sub(r"\\(.)", lambda escaped: meant.get(escaped[1], escaped[1]), label) == f"ones((4,))\n{name}:1"


def test_moves_say_where_made_where_moved_and_the_cure() -> None:
    """`MovedError` of a handle has all three."""
    tensor, made = ones((2,)).sync(), line()
    moved_by, moved = value(tensor), line()
    with pytest.raises(MovedError) as caught:
        tensor.borrow()
    text = str(caught.value)
    assert f"{__file__}:{made}" in text
    assert f"{__file__}:{moved}" in text
    assert ".borrow()" in text
    assert moved_by.to_host().sync().tolist() == [1.0, 1.0]


def test_a_handle_moved_lazily_was_moved_at_the_users_line() -> None:
    """A method of an op moves the handle: the line is the op's, not one of the library's."""
    kept: list[Any] = []
    op, here = ones((2,)).inspect(kept.append).partition((2,)).unpartition().to_host(), line()
    op.sync()
    with pytest.raises(MovedError, match=f"partition.*{__file__}:{here}"):
        kept[0].shape


def test_origins_can_be_turned_off() -> None:
    """Everything works without them; messages then say so."""
    assert record_origins(False) is True
    try:
        op = zip_ops(ones((2,)), value(0).map(stop))
        assert "an unknown place" in repr(op)
        with pytest.raises(ValueError, match="stop") as caught:
            op.sync()
        assert any("an unknown place" in note for note in caught.value.__notes__)
        assert "Plan" in bumped(zeros((2,))).explain()
        assert bumped(zeros((2,))).to_dot().endswith("}")
        tensor = ones((2,)).sync()
        tensor.share()
        with pytest.raises(MovedError, match="an unknown place"):
            tensor.shape
    finally:
        assert record_origins(True) is False
    assert __file__ in repr(value(1))


def test_an_op_is_neither_true_nor_false() -> None:
    """`if op:` is a mistake, and says so."""
    with pytest.raises(TypeError, match="description"):
        bool(value(1))


def test_what_is_no_op_is_refused_where_an_op_is_wanted() -> None:
    """`zip_ops` of a plain value, and a node of somebody else's making."""
    with pytest.raises(TypeError, match=r"value\(x\)"):
        zip_ops(value(1), 2)  # type: ignore[call-overload]  # reason: that is the mistake

    class Mine(DeviceOp[int]):
        origin = None

    with pytest.raises(TypeError, match="closed"):
        Mine().sync()


def test_unzip_needs_to_know_how_many() -> None:
    """After a closure `unzip()` asks for a number; a wrong one is refused when it is seen."""
    with pytest.raises(ShapeError, match=r"unzip\(2\)"):
        value(1).map(lambda x: (x, x)).unzip()
    with pytest.raises(ShapeError, match="2 components"):
        zip_ops(value(1), value(2)).unzip(3)
    with pytest.raises(ShapeError, match="2 components"):
        value(1).map(lambda x: (x, x)).unzip(3)[0].sync()
    with pytest.raises(ShapeError, match="int"):
        UNTYPED(1).map(lambda x: x).unzip(3)[0].sync()


def test_the_package_says_what_it_exports() -> None:
    """All names of `dagpu.__all__` are there."""
    assert all(hasattr(dagpu, name) for name in dagpu.__all__)
