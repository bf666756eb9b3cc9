"""Imports of arrays on simulated GPUs: what is asked of the array's library and of the driver, and when the driver
refuses."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import (
    DeviceError,
    InteropError,
    adopt,
    cutoff,
    dup,
    expr,
    f32,
    from_array,
    from_host,
    lend,
    lend_mut,
    ones,
    pipeline,
    share_array,
    source,
    zeros,
)
from dagpu.backends.cuda.resources.cuda_exchange import MOST_ARRIVALS
from tests.behaviour.live.live_kernels import array, flipped, gathered
from tests.behaviour.live.live_trials import Trial
from tests.simulated.cuda import driver, installed
from tests.simulated.foreign_arrays import Library, LibraryArray, imported_libraries

CONTENTS = np.arange(12, dtype=f32).reshape(3, 4)


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


@pytest.mark.parametrize("name", ["PyTorch", "CuPy"])
def test_attributes_give_the_memory_and_take_it_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DLPack reads the first array of a form, attributes the others; DLPack reads again where a stream is named."""
    with installed() as machine:
        library = Library(machine)
        asked: list[int] = []
        exported = LibraryArray.__dlpack__

        def counting(array: LibraryArray, **named: Any) -> Any:
            asked.append(array.address)
            return exported(array, **named)

        monkeypatch.setattr(LibraryArray, "__dlpack__", counting)
        with imported_libraries(library) as makers:
            make = makers[name]
            for number, contents in enumerate((CONTENTS, CONTENTS + 1, CONTENTS.reshape(-1), CONTENTS - 1)):
                shared = share_array(make(library.array(contents)), f32)
                assert_array_equal(plus_one(shared).to_host().sync(), contents + 1)
                assert len(asked) == (1, 1, 2, 2)[number]
            named = share_array(make(library.array(CONTENTS)), f32, stream=library.stream.handle)
            assert_array_equal(plus_one(named).to_host().sync(), CONTENTS + 1)
            assert len(asked) == 3
            before = library.freed
            del shared, named
            gc.collect()
            ones((1,)).sync()  # the next run releases it
            assert library.freed > before


def test_what_attributes_do_not_decide_goes_by_dlpack() -> None:
    """A tensor with gradients gets PyTorch's own words. One whose attributes cannot be read, or name no memory, is read
    by DLPack."""
    with installed() as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            x, y = [makers["PyTorch"](library.array(CONTENTS)) for _ in range(2)]
            share_array(x, f32)
            y.requires_grad = True
            with pytest.raises(InteropError, match="it requires grad"):
                share_array(y, f32)
            y.requires_grad = False
            del y.shape
            assert_array_equal(plus_one(share_array(y, f32)).to_host().sync(), CONTENTS + 1)
            z = makers["PyTorch"](library.array(CONTENTS))
            z.data_ptr = lambda: 0
            assert_array_equal(plus_one(share_array(z, f32)).to_host().sync(), CONTENTS + 1)


@pytest.mark.parametrize("bit", ["is_neg", "is_conj"])
def test_a_lazy_view_goes_by_dlpack(bit: str) -> None:
    """PyTorch's views that negate or conjugate when they are read have the memory and the attributes of the tensor
    itself. PyTorch's own words refuse them."""

    def refuse(**_: object) -> None:
        raise BufferError(f"{bit} is set")

    with installed() as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            x, y = [makers["PyTorch"](library.array(CONTENTS)) for _ in range(2)]
            share_array(x, f32)
            setattr(y, bit, lambda: True)
            y.array.__dlpack__ = refuse
            with pytest.raises(InteropError, match=f"{bit} is set"):
                share_array(y, f32)


def test_managed_memory_is_refused_by_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's managed memory has the attributes of memory of a device. It is refused before and after another array of
    its form."""
    kinds: dict[int, int] = {}
    monkeypatch.setattr(LibraryArray, "__dlpack_device__", lambda array: (kinds.get(array.address, 2), 0))
    with installed() as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            managed, plain = [makers["CuPy"](library.array(CONTENTS)) for _ in range(2)]
            kinds[managed.array.address] = 13
            for array in (managed, plain, managed):
                if array is plain:
                    assert_array_equal(plus_one(share_array(array, f32)).to_host().sync(), CONTENTS + 1)
                else:
                    with pytest.raises(InteropError, match="managed memory"):
                        share_array(array, f32)


def test_attributes_that_disagree_with_dlpack_are_not_read() -> None:
    """An array that says another address than its capsule is read by DLPack each time."""
    with installed() as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            for _ in range(2):
                array = makers["CuPy"](library.array(CONTENTS))
                array.data.ptr += 4
                assert_array_equal(plus_one(share_array(array, f32)).to_host().sync(), CONTENTS + 1)


def test_a_run_asks_once_whether_an_import_has_arrived() -> None:
    """An import asks the driver for nothing but an event. The next run looks at it, forgets it, and is a graph as runs
    without imports are."""
    with installed() as machine:
        library = Library(machine)
        gpu = library.gpu
        step = pipeline(graph_from=2)(lambda x: plus_one(x).to_host())
        for _ in range(3):
            step(share_array(library.array(CONTENTS), f32)).sync()
        calls = gpu.calls.copy()
        shared = share_array(library.array(CONTENTS).interface(stream=None), f32)
        assert gpu.calls - calls == {"cuMemAlloc": 1, "cuPointerGetAttribute": 1, "cuEventRecord": 1}
        with gpu.current():
            gpu.synchronize()
        for queries in (1, 0):
            calls = gpu.calls.copy()
            assert_array_equal(step(shared.clone()).sync(), CONTENTS + 1)
            made = gpu.calls - calls
            assert (made["cuEventQuery"], made["cuStreamWaitEvent"], made["cuGraphLaunch"]) == (queries, 0, 1)


def test_an_import_that_has_arrived_leaves_an_update_one_graph() -> None:
    """An update whose graph decides its cutoffs looks whether imports have arrived, as other runs do."""
    with installed(gpus=1) as machine:
        library, x = Library(machine), source(array(1))
        trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).share(), [x])
        trial.update()
        for number in (2, 2, 3):
            shared = share_array(library.array(CONTENTS), f32)
            with library.gpu.current():
                library.gpu.synchronize()
            x.set(array(number))
            decisions = len(machine.decisions)
            trial.update()
            assert len(machine.decisions) == decisions + 1
            assert_array_equal(plus_one(shared).to_host().sync(), CONTENTS + 1)


CALLS = ("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamCreate", "cuStreamWaitEvent")
VERBS: dict[str, Callable[[Any], Any]] = {
    "adopt": lambda x: adopt(x, f32),
    "share": lambda x: share_array(x, f32),
    "from": lambda x: from_array(x, f32),
    "lend": lambda x: lend(x, f32).__enter__(),
    "lend_mut": lambda x: lend_mut(x, f32).__enter__(),
}


@pytest.mark.parametrize("protocol", ["DLPack", "PyTorch", "interface"])
@pytest.mark.parametrize("verb", VERBS)
def test_an_import_that_the_driver_refuses_leaves_nothing(verb: str, protocol: str) -> None:
    """Whichever call of the driver fails, the error is the driver's, the array is given back once, and the next import
    and its run are right."""
    for call, nth in product(CALLS, (1, 2, 3)):
        with ExitStack() as entered:
            machine = entered.enter_context(installed())
            library = Library(machine)
            gpu, array = library.gpu, library.array(CONTENTS)
            theirs: Any = array.interface() if protocol == "interface" else array
            if protocol == "PyTorch":
                make = entered.enter_context(imported_libraries(library))["PyTorch"]
                share_array(make(library.array(CONTENTS)), f32)
                plus_one(zeros((2,))).sync()
                theirs = make(array)
            gpu.fail(call, 1, nth)
            try:
                VERBS[verb](theirs)
            except (DeviceError, InteropError) as error:
                assert "CUresult 1" in str(error)  # noqa: PT017  # most calls are not made so often
            gpu.heal()
            gc.collect()
            handle = adopt(theirs, f32)  # nobody has it
            assert_array_equal(plus_one(handle).to_host().sync(), CONTENTS + 1)
            del handle, theirs
            ones((2,)).sync()


def test_imports_that_no_run_uses_keep_few_events() -> None:
    """However many arrays are taken over between two runs, the events of those that are dropped, or that have arrived,
    are used again."""
    with installed() as machine:
        library = Library(machine)
        gpu = library.gpu
        with imported_libraries(library) as makers:
            array = makers["CuPy"](library.array(CONTENTS))
            share_array(array, f32)  # from now on arrays of its form are read by attributes
            before = gpu.events
            for _ in range(50):
                share_array(array, f32)
            assert gpu.events - before <= 1
            with gpu.current():
                gpu.synchronize()
            kept = [share_array(array, f32) for _ in range(2 * MOST_ARRIVALS)]
            assert gpu.events - before <= MOST_ARRIVALS + 2
            assert_array_equal(dup(kept[-1]).to_host().sync(), CONTENTS)


def test_an_array_of_a_stream_that_is_being_captured_is_refused_by_runs() -> None:
    """Its contents never arrive, and a stream that waited for them would become a part of the capture. Other runs go
    on, and the array can be taken over again afterwards."""
    with installed() as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            array = makers["PyTorch"](library.array(CONTENTS))
            other = share_array(array, f32)
            library.stream.is_captured = True
            captured = share_array(array, f32)
            for _ in range(2):
                with pytest.raises(
                    InteropError, match=r"run at \S+test_imported_arrays.py:\d+ uses .* was being captured"
                ):
                    plus_one(captured).sync()
                assert_array_equal(plus_one(other).to_host().sync(), CONTENTS + 1)
            library.stream.is_captured = False
            with pytest.raises(InteropError, match="was being captured"):
                plus_one(captured).sync()
            assert_array_equal(plus_one(share_array(array, f32)).to_host().sync(), CONTENTS + 1)
            del captured
            assert_array_equal(plus_one(other).to_host().sync(), CONTENTS + 1)
            assert not driver().exchange.arrivals
