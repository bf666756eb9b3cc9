"""Mistakes with arrays of other libraries."""

import ctypes
import gc
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from dagpu import (
    In,
    Out,
    Tile,
    adopt,
    convert,
    dup,
    f32,
    f64,
    fill,
    from_array,
    from_host,
    kernel,
    lend,
    lent_out,
    share_array,
    stream_of,
    unversioned,
    use_device,
    zeros,
)
from dagpu.interop.capsules import ArrayMemory, form_of, make_capsule
from tests.behaviour.errors.cures.catalogue import Catalogue
from tests.simulated.cuda import driver
from tests.simulated.foreign_arrays import Library, imported_libraries

CATALOGUE = Catalogue()
case = CATALOGUE.add


def array(*shape: int) -> Any:
    return np.zeros(shape or (8,), f32)


def fixed() -> Any:
    found = array()
    found.flags.writeable = False
    return found


class Speaks:
    """An array of another library that answers as it is told to."""

    def __init__(self, capsule: Callable[..., object], device: tuple[int, int] = (1, 0)) -> None:
        self.__capsule = capsule
        self.__device = device

    def __dlpack__(self, **options: Any) -> object:
        return self.__capsule(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.__device


def capsule(*, device: tuple[int, int] = (1, 0), lanes: int = 1, major: int = 1, **fields: int) -> object:
    """A capsule of another library, with these entries in its structure."""
    kept = array()
    form = form_of(kept.dtype, kept.shape, kept.strides)
    memory = ArrayMemory(kept.ctypes.data, form, device, False, kept)
    made = make_capsule(memory, versioned=True)
    point = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    start = point(made, b"dltensor_versioned")
    struct.pack_into("=I", (ctypes.c_char * 80).from_address(start), 0, major)
    struct.pack_into("=H", (ctypes.c_char * 80).from_address(start), 54, lanes)
    for name, value in fields.items():
        at, code = {"data": (32, "Q"), "rank": (48, "i")}[name]
        struct.pack_into(f"={code}", (ctypes.c_char * 80).from_address(start), at, value)
    return made


def refuses(**_options: Any) -> object:
    raise BufferError("it requires grad")


def library() -> Library:
    return Library(driver().gpu.machine)  # type: ignore[attr-defined]  # the driver of these programs is simulated


def on_gpu(**changed: Any) -> Any:
    return library().array(array()).interface(**changed)


def untyped(x: object) -> Any:
    return x


def inside(block: AbstractContextManager[Any], use: Callable[[Any], object]) -> object:
    with block as given:
        return use(given)


def amid_capture(when: str) -> object:
    """Use an array that is taken over before, while, or after its stream is captured."""
    theirs = library()
    with imported_libraries(theirs) as makers:
        x = makers["PyTorch"](theirs.array(array()))
        share_array(x, f32)  # its library is asked for the first of its form
        taken: dict[str, Any] = {}
        for now in ("before", "meanwhile", "after"):
            theirs.stream.is_captured = now == "meanwhile"
            taken[now] = share_array(x, f32)
        return dup(taken[when]).sync()


def named(*, captured: bool) -> object:
    """Take an array over that names its stream."""
    theirs = library()
    x: Any = theirs.array(array()).interface()
    theirs.stream.is_captured = captured
    return share_array(x, f32)


# ---- in


case(
    lambda: amid_capture("meanwhile"),
    ("Take it over before the capture", lambda: amid_capture("before")),
    ("or after the graph has run", lambda: amid_capture("after")),
    simulated=True,
)
case(
    lambda: named(captured=True),
    ("Take it over before the capture, or after the graph has run", lambda: named(captured=False)),
    simulated=True,
)
case(
    lambda: adopt(fixed()),
    ("Share it, share_array(x)", lambda: share_array(fixed())),
    ("lend it for reading, lend(x)", lambda: inside(lend(fixed()), lambda x: x.to_host().sync())),
    ("copy it: from_array(x)", lambda: from_array(fixed()).sync()),
)
case(
    lambda: adopt(array(4, 4).T[::2]),
    ("Copy it: from_array(x)", lambda: from_array(array(4, 4).T[::2]).sync()),
    ("make it contiguous in its library first", lambda: adopt(np.ascontiguousarray(array(4, 4).T[::2]))),
)


def twice(first: Callable[[Any], object], second: Callable[[Any], object]) -> object:
    kept = array()
    one = first(kept)
    two = second(kept)
    return one, two


case(
    lambda: twice(adopt, adopt),
    ("Use that handle", lambda: adopt(array()).borrow().to_host().sync()),
    ("copy the array: from_array(x)", lambda: twice(adopt, lambda x: from_array(x).sync())),
)
case(
    lambda: share_array(array(), f64),
    ("say the type that it has", lambda: share_array(array(), f32)),
    ("convert it afterwards: convert(t, dtype)", lambda: convert(share_array(array()), f64).sync()),
)
case(
    lambda: adopt([1.0]),  # type: ignore[call-overload]
    ("Make an array of it first: numpy.asarray(x)", lambda: adopt(np.asarray([1.0]))),
)
case(
    lambda: adopt(zeros((2,)).sync()),
    ("Pass it on as it is", lambda: zeros((2,)).sync().to_host().sync()),
)
case(
    lambda: share_array(Speaks(refuses)),
    ("Ask its library for a plain array first", lambda: share_array(Speaks(array().__dlpack__))),
)
case(
    lambda: share_array(Speaks(lambda **_: object())),
    ("Ask its library for a plain array first", lambda: share_array(Speaks(array().__dlpack__))),
)
case(
    lambda: share_array(np.zeros(3, np.complex256)),
    ("Round it: x.astype(np.complex128)", lambda: share_array(np.zeros(3, np.complex256).astype(np.complex128))),
)


def fields() -> Any:
    return np.zeros(3, [("a", f32), ("b", "S4")])


case(
    lambda: share_array(fields()),
    ("Take its fields by themselves: x['a']", lambda: share_array(fields()["a"])),
)
case(
    lambda: share_array(array(), untyped("single precision")),
    ("Say the type of the array's, float32,", lambda: share_array(array(), f32)),
    ("or leave it out", lambda: share_array(array())),
)


def swapped() -> Any:
    return np.arange(3, dtype=">f4")


case(
    lambda: share_array(swapped()),
    ("Swap them: x.astype", lambda: share_array(swapped().astype(swapped().dtype.newbyteorder("=")))),
)


def masked() -> Any:
    return np.ma.masked_array(np.zeros(3, f32), [False, True, False])


case(
    lambda: share_array(masked()),
    ("Fill the masked elements first: x.filled(0)", lambda: share_array(masked().filled(0))),
)


def unaligned() -> Any:
    return np.zeros(9, np.uint8)[1:].view(f32)


case(
    lambda: share_array(unaligned()),
    ("Copy it in its library first", lambda: share_array(unaligned().copy())),
)
case(
    lambda: from_array(Speaks(lambda **_: capsule(device=(8, 0)), (8, 0))),
    ("Copy it to a tensor: from_host(numpy.asarray(x))", lambda: from_host(np.asarray(array())).sync()),
)
case(
    lambda: share_array(Speaks(lambda **_: capsule(device=(8, 0)), (8, 0))),
    ("from_host(numpy.asarray(x))", lambda: from_host(np.asarray(array())).sync()),
)
case(
    lambda: share_array(Speaks(lambda **_: capsule(lanes=4))),
    ("Convert it in its library first, for instance to float32", lambda: share_array(array())),
)
for torn in (partial(capsule, rank=65), partial(capsule, data=0), partial(capsule, device=(2, 0))):
    case(
        partial(share_array, Speaks(lambda torn=torn, **_: torn())),
        ("Ask its library for a plain array first", lambda: share_array(Speaks(array().__dlpack__))),
    )
case(
    lambda: share_array(Speaks(lambda **_: capsule(major=2))),
    ("Ask its library for a plain array first", lambda: share_array(Speaks(array().__dlpack__))),
)


def used_after_the_block() -> object:
    with lend(array()) as lent:
        pass
    return lent.to_host().sync()  # type: ignore[dagpu-use-after-move]  # the mistake of this case


case(
    used_after_the_block,
    ("Use it in the block", lambda: inside(lend(array()), lambda x: x.to_host().sync())),
    ("or share the array for longer: share_array(x)", lambda: dup(share_array(array())).to_host().sync()),
)

held, let_go = threading.Event(), threading.Event()


@kernel(cuda="__global__ void slow(Tile<float, 1> y, View<const float, 1> x) {}")
def slow(y: Out[f32], x: In[f32]) -> None: ...


@slow.host
def _(y: Tile[f32], x: Any) -> None:
    held.set()
    let_go.wait(60)


def left_running(*, await_it: bool = False) -> None:
    held.clear()
    let_go.clear()
    with ThreadPoolExecutor(1) as other, ExitStack() as stack:
        stack.callback(let_go.set)
        with lend(array()) as lent, use_device("host"):
            op = slow(zeros((8,)).on("host").partition((8,)), lent)
            running = other.submit(lambda: op.sync())
            held.wait(60)
            if await_it:
                let_go.set()
                running.result()


case(left_running, ("Await that run in the block", partial(left_running, await_it=True)))


def left_with_another_library(*, drop_it: bool = False) -> object:
    with lend(array()) as lent:
        taken = inside(lent_out(lent), np.from_dlpack)
        if drop_it:
            del taken
            return None
    return taken


case(left_with_another_library, ("Drop what the other library took", partial(left_with_another_library, drop_it=True)))


def in_blocks(*blocks: AbstractContextManager[Any]) -> None:
    for block in blocks:
        inside(block, lambda x: x.to_host().sync())


case(
    lambda: in_blocks(*[lend(array())] * 2),
    ("Call lend(x) for each block", lambda: in_blocks(lend(array()), lend(array()))),
)


def ends_unbegun() -> None:
    loan = lend(array())
    loan.__exit__(None, None, None)


case(
    ends_unbegun,
    ("Write a block: with lend(x) as t: ...", lambda: inside(lend(array()), lambda x: x.to_host().sync())),
)

# ---- in, on a GPU


case(
    lambda: share_array(on_gpu(mask=array())),
    ("Fill it first", lambda: share_array(on_gpu())),
    simulated=True,
)
case(
    lambda: share_array(on_gpu(version=2, stream=None)),
    ("Name it: stream=..., 1 for the default stream", lambda: share_array(on_gpu(version=2, stream=None), stream=1)),
    simulated=True,
)


case(
    lambda: share_array(on_gpu(shape=(-1,))),
    ("Ask its library for a plain array first", lambda: share_array(on_gpu())),
    simulated=True,
)
case(
    lambda: share_array(on_gpu(data=(array().ctypes.data, False))),
    ("An array of the host goes by numpy.asarray(x)", lambda: from_array(np.asarray(array())).sync()),
    simulated=True,
)


class Numbered:
    def __init__(self) -> None:
        self.ptr = 1


case(
    lambda: share_array(on_gpu(), stream=untyped(Numbered())),
    ("Pass its CUstream: stream=s.ptr", lambda: share_array(on_gpu(), stream=Numbered().ptr)),
    simulated=True,
)
case(
    lambda: share_array(on_gpu(), stream=untyped("default")),
    ("Pass an object with __cuda_stream__, or the CUstream as an integer", lambda: share_array(on_gpu(), stream=1)),
    simulated=True,
)
case(
    lambda: stream_of(None),  # type: ignore[arg-type]
    ("The default stream is 1", lambda: stream_of(1)),
    simulated=True,
)
case(
    lambda: stream_of(1, "host"),
    ('Name the device of the stream: stream_of(x, "cuda:0")', lambda: stream_of(1, "cuda:0")),
    simulated=True,
)

# ---- out


def shared() -> Any:
    return zeros((2,)).sync().share()


case(
    lambda: inside(lent_out(zeros((2,)).sync().borrow()), np.asarray),
    ("Say numpy.from_dlpack(x)", lambda: inside(lent_out(zeros((2,)).sync().borrow()), np.from_dlpack)),
)
case(
    lambda: inside(lent_out(zeros((2,)).sync().borrow()), copy),
    ("Pass it on as it is", lambda: inside(lent_out(zeros((2,)).sync().borrow()), np.from_dlpack)),
    ("or copy the contents: dup(t)", lambda: dup(zeros((2,)).sync().borrow()).sync()),
)


case(
    lambda: np.from_dlpack(untyped(zeros((2,)).sync().borrow())),
    (
        "Lend it to the other library for a block: with lent_out(t) as x: ...",
        lambda: inside(lent_out(zeros((2,)).sync().borrow()), np.from_dlpack),
    ),
)
case(
    lambda: zeros((2,)).sync().__dlpack__(dl_device=(2, 0)),
    ("Copy it first: t.to_host().sync() is a NumPy array", lambda: zeros((2,)).sync().to_host().sync()),
)
case(
    lambda: zeros((2,)).sync().__dlpack__(copy=True),
    ("Copy it first: dup(t.borrow()).sync()", lambda: dup(zeros((2,)).sync().borrow()).sync().__dlpack__()),
)
case(
    lambda: shared().__dlpack__(),
    ("pass unversioned(t)", lambda: unversioned(shared()).__dlpack__()),
    ("a copy: dup(t).sync()", lambda: dup(shared()).sync().__dlpack__()),
)


def captured(use: Callable[[Any], object]) -> object:
    graph = zeros((2,)).graph()
    return use(graph.take_output())


case(
    lambda: captured(np.from_dlpack),
    ("Copy it, dup(t.borrow())", lambda: captured(lambda t: np.from_dlpack(dup(t.borrow()).sync()))),
    (
        "lend it out: with lent_out(t.borrow()) as x: ...",
        lambda: captured(lambda t: inside(lent_out(t.borrow()), np.from_dlpack)),
    ),
)
case(
    lambda: lent_out(zeros((2,)).sync()),  # type: ignore[arg-type]
    ("lent_out(t.borrow()) for reading", lambda: lent_out(zeros((2,)).sync().borrow())),
    ("lent_out(t.borrow_mut()) for writing", lambda: lent_out(zeros((2,)).sync().borrow_mut())),
)
case(
    lambda: unversioned(zeros((2,)).sync()),  # type: ignore[arg-type]
    ("Share it first: unversioned(t.share())", lambda: unversioned(zeros((2,)).sync().share())),
)


def after_the_block() -> object:
    tensor = zeros((2,)).sync()
    with lent_out(tensor.borrow()) as x:
        pass
    return np.from_dlpack(x)


case(
    after_the_block,
    (
        "Use the array inside it: with lent_out(t) as x: ...",
        lambda: inside(lent_out(zeros((2,)).sync().borrow()), np.from_dlpack),
    ),
)


def written_while_lent(*, drop: bool = False) -> None:
    tensor = zeros((2,)).sync()
    with lent_out(tensor.borrow()) as x:
        taken = np.from_dlpack(x)
    if drop:
        del taken
        gc.collect()
    fill(tensor.borrow_mut(), 1.0).sync()


case(
    written_while_lent,
    (
        "End the block of lent_out() first, and drop what the other library took in it",
        partial(written_while_lent, drop=True),
    ),
)
