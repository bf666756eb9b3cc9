"""The kernel that sets the condition of a conditional node, run on the CPU."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from struct import pack_into

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu.backends.cuda.kernels.fill_and_copy import decide
from dagpu.testing import Order
from tests.support.text_entries import TextEntries

MOST = 3
"""The most arrays of flags that are tried."""

COUNTED = """
inline void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
    unsigned int* told = reinterpret_cast<unsigned int*>(handle);
    told[0] = value;
    told[1] += 1;
}
"""


@pytest.fixture(scope="session", name="kernels")
def decisions() -> TextEntries:
    """Kernels for one array of flags, and for several. The handle is the address of a value and a count of calls."""
    parts = []
    for count in range(1, MOST + 1):
        text = decide([1] * count).source.partition(";")[2].replace("dagpu_decide", f"decide{count}")
        parts.append(text)
    return TextEntries(COUNTED + "".join(parts), {f"{n}": f"decide{n}" for n in range(1, MOST + 1)})


@settings(max_examples=40)
@given(
    counts=st.lists(st.sampled_from((1, 2, 255, 256, 257, 1024)), min_size=1, max_size=MOST),
    place=st.none() | st.tuples(st.integers(0, MOST - 1), st.integers(0, 1023)),
    value=st.sampled_from((1, 2, 1 << 31)),
)
def test_any_flag_sets_the_condition_once(
    kernels: TextEntries, counts: Sequence[int], place: tuple[int, int] | None, value: int
) -> None:
    """One thread sets it, to 1 if any flag of any array is not 0, else to 0."""
    flags = [np.zeros(count, np.uint32) for count in counts]
    if place is not None:
        chosen = flags[place[0] % len(flags)]
        chosen[place[1] % len(chosen)] = value
    work = decide(counts)
    for order in (Order(0, 0), Order(1, 1)):
        told = np.array([7, 0], np.uint32)
        packed = bytearray(work.arguments)
        for at, array in zip((0, *work.pointers), (told, *flags), strict=True):
            pack_into("<Q", packed, at, array.ctypes.data)
        kernels.launch(f"{len(counts)}", work.grid, work.block, bytes(packed), order)
        assert told.tolist() == [int(place is not None), 1]


def test_nvcc_declares_the_function_in_the_same_way(tmp_path: Path) -> None:
    """The text, which declares a function of the device runtime itself, compiles where that is declared too, and the
    cubin leaves the function to the driver."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    source, cubin = tmp_path / "decide.cu", tmp_path / "decide.cubin"
    source.write_text(decide([4, 1024]).source)
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-cubin", str(source), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"cudaGraphSetConditional\0" in cubin.read_bytes()
