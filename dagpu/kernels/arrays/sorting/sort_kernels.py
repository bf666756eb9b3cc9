"""The generated kernels of a sort: one pass over rows, as CUDA text and as a NumPy twin."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.arrays.sorting.merge_passes import EACH
from dagpu.kernels.expressions.operations.cuda_operations import load_text, memory_type, register_type
from dagpu.kernels.generated.generated_launch import generated_kernel, number_input, output, tensor_input
from dagpu.ops.kernel_spec import KernelSpec

_I64: Final = np.dtype(np.int64)

_COMMON: Final = """\
// True if a comes before b. A NaN comes {nan}, and equal elements keep their order.
__device__ __forceinline__ bool before({element} left, {element} right) {{
    const {number} a = {load_left}, b = {load_right};
    return {rule};
}}

// How many of the first d elements of two merged runs are of run a. Of equal elements those of a are first.
template <class A, class B>
__device__ __forceinline__ long long taken(A a, long long of_a, B b, long long of_b, long long d) {{
    long long low = d > of_b ? d - of_b : 0, high = d < of_a ? d : of_a;
    while (low < high) {{
        const long long middle = (low + high) / 2;
        if (before(b(d - 1 - middle), a(middle))) high = middle;
        else low = middle + 1;
    }}
    return low;
}}

// Merges the runs [at, at + of_a) and [at + of_a, at + of_a + of_b) of `part` from element d on: up to {each} of them.
__device__ __forceinline__ void merge(const {element}* part, {places_formal}int at, int of_a, int of_b, int d,
                                      {element}* mine{mine_formal}) {{
    const {element} *a = part + at, *b = a + of_a;
    int i = 0, j = 0;
    if (d < of_a + of_b) {{
        i = taken([&](long long k) {{ return a[k]; }}, of_a, [&](long long k) {{ return b[k]; }}, of_b, d);
        j = d - i;
    }}
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        if (i + j < of_a + of_b) {{
            const bool left = i < of_a && (j >= of_b || !before(b[j], a[i]));
            const int from = left ? i++ : of_a + j++;
            mine[k] = a[from];{take_place}
        }}
    }}
}}
"""

_FIRST: Final = """
__global__ void {name}({outputs}, View<const {element}, 2> x) {{
    __shared__ {element} part[{span}];{shared_places}
    {element} mine[{each}];{own_places}
    const dagpu::index_t row = out.origin(0), first = out.origin(1);
    const int thread = threadIdx.x, begin = thread * {each};
    const int length = x.extent(1) - first < {span} ? x.extent(1) - first : {span};
    for (int at = thread; at < length; at += {threads}) part[at] = x(row, first + at);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        if (begin + k < length) {{
            mine[k] = part[begin + k];{first_place}
        }}
    }}
    // Neighbours change places only if they are in the wrong order, so equal elements keep theirs.
#pragma unroll
    for (int round = 0; round < {each}; ++round) {{
#pragma unroll
        for (int k = round % 2; k + 1 < {each}; k += 2) {{
            if (begin + k + 1 < length && before(mine[k + 1], mine[k])) {{
                const {element} other = mine[k];
                mine[k] = mine[k + 1];
                mine[k + 1] = other;{swap_places}
            }}
        }}
    }}
    for (int run = {each}; ; run *= 2) {{
        __syncthreads();
#pragma unroll
        for (int k = 0; k < {each}; ++k) {{
            if (begin + k < length) {{
                part[begin + k] = mine[k];{store_place}
            }}
        }}
        __syncthreads();
        if (run >= length) break;
        const int at = begin / (2 * run) * 2 * run;
        const int middle = at + run < length ? at + run : length, end = at + 2 * run < length ? at + 2 * run : length;
        if (begin < end) merge(part, {places_actual}at, middle - at, end - middle, begin - at, mine{mine_actual});
    }}
    for (int at = thread; at < out.tile_extent(1); at += {threads}) {{{write}
    }}
}}
"""

_MERGE: Final = """
__global__ void {name}({outputs}, View<const {element}, 2> x, {input_places}long long run, long long made) {{
    __shared__ {element} part[{span}];{shared_places}
    __shared__ long long splits[2];
    {element} mine[{each}];{own_places}
    const dagpu::index_t row = out.origin(0), first = out.origin(1);
    const int thread = threadIdx.x, begin = thread * {each}, count = out.tile_extent(1);
    const long long length = x.extent(1), pair = first / made, left = pair * 2 * run, d = first - pair * made;
    const long long middle = left + run < length ? left + run : length;
    const long long end = left + 2 * run < length ? left + 2 * run : length;
    if (thread < 2) {{
        splits[thread] = taken(
            [&](long long k) {{ return x(row, left + k); }}, middle - left,
            [&](long long k) {{ return x(row, middle + k); }}, end - middle, thread ? d + count : d);
    }}
    __syncthreads();
    const int of_a = splits[1] - splits[0];
    const dagpu::index_t a = left + splits[0], b = middle + d - splits[0] - of_a;
    for (int at = thread; at < count; at += {threads}) {{
        const dagpu::index_t begins = (at < of_a ? a : b) + at;
        part[at] = x(row, begins);{load_place}
    }}
    __syncthreads();
    merge(part, {places_actual}0, of_a, count - of_a, begin, mine{mine_actual});
    __syncthreads();
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        if (begin + k < count) {{
            part[begin + k] = mine[k];{store_place}
        }}
    }}
    __syncthreads();
    for (int at = thread; at < count; at += {threads}) {{{write}
    }}
}}
"""


@final
class PassKernel(NamedTuple):
    """The kernel of one pass: what it reads and writes."""

    dtype: "np.dtype[Any]"
    """The element type of the rows."""
    threads: int
    first: bool
    descending: bool
    keys: bool
    """True if it writes the elements."""
    held: "np.dtype[Any] | None"
    """The type of places that it reads, or finds in the first pass; None if only elements are sorted."""
    places: "np.dtype[Any] | None"
    """The type of the places that it writes; None if it writes none."""


@cache
def sort_kernel(wanted: PassKernel) -> KernelSpec:
    """Return the kernel of one pass over rows.

    Its parameters are its outputs (elements, places), the rows, their places if it merges and holds places, and for a
    merge the lengths of its runs and of those that it makes.
    """
    name = ("sort_spans" if wanted.first else "merge_runs") + ("_with_places" if wanted.held is not None else "")
    outputs = [dtype for dtype in (wanted.dtype if wanted.keys else None, wanted.places) if dtype is not None]
    params = [output(formal, dtype, 2) for formal, dtype in zip(("out", "other"), outputs, strict=False)]
    params.append(tensor_input("x", wanted.dtype, 2))
    if not wanted.first:
        if wanted.held is not None:
            params.append(tensor_input("from", wanted.held, 2))
        params += [number_input("run", _I64, name), number_input("made", _I64, name)]
    formals = ", ".join(
        [f"Tile<{memory_type(dtype)}, 2> {formal}" for formal, dtype in zip(("out", "other"), outputs, strict=False)]
    )
    text = (_COMMON + (_FIRST if wanted.first else _MERGE)).format(name=name, outputs=formals, **_pieces(wanted))
    twin = _first_twin(wanted) if wanted.first else _merge_twin(len(outputs))
    return generated_kernel(name, params, text, twin, (sort_kernel.__wrapped__.__code__, 0), block=(wanted.threads,))


def _pieces(wanted: PassKernel) -> dict[str, object]:
    """Return the parts of the text that depend on the element type, the order, and the places."""
    dtype, span = wanted.dtype, wanted.threads * EACH
    sign = ">" if wanted.descending else "<"
    odd = "a != a && b == b" if wanted.descending else "b != b && a == a"
    names = [name for name, writes in (("part", wanted.keys), ("spot", wanted.places is not None)) if writes]
    targets = zip(("out", "other"), names, strict=False)
    write = "".join([f"\n        {target}(row, first + at) = {name}[at];" for target, name in targets])
    pieces: dict[str, object] = {
        "element": memory_type(dtype),
        "number": register_type(dtype),
        "load_left": load_text(dtype, "left"),
        "load_right": load_text(dtype, "right"),
        "rule": f"a {sign} b || ({odd})" if dtype.kind == "f" or register_type(dtype) == "float" else f"a {sign} b",
        "nan": "first" if wanted.descending else "last",
        "each": EACH,
        "span": span,
        "threads": wanted.threads,
        "write": write,
    }
    if wanted.held is None:
        return pieces | dict.fromkeys(_OF_PLACES, "")
    place = memory_type(wanted.held)
    return pieces | {name: text.format(place=place, each=EACH, span=span) for name, text in _OF_PLACES.items()}


_OF_PLACES: Final = {
    "places_formal": "const {place}* spot, ",
    "places_actual": "spot, ",
    "mine_formal": ", {place}* whose",
    "mine_actual": ", whose",
    "take_place": "\n            whose[k] = spot[at + from];",
    "shared_places": "\n    __shared__ {place} spot[{span}];",
    "own_places": "\n    {place} whose[{each}];",
    "first_place": "\n            whose[k] = first + begin + k;",
    "swap_places": "\n                const {place} place = whose[k];"
    "\n                whose[k] = whose[k + 1];\n                whose[k + 1] = place;",
    "store_place": "\n            spot[begin + k] = whose[k];",
    "load_place": "\n        spot[at] = from(row, begins);",
    "input_places": "View<const {place}, 2> from, ",
}
"""The parts of the text for places, which a sort of elements alone does without."""


# ---- NumPy
def sorted_places(rows: NDArray[Any], descending: bool) -> NDArray[np.int64]:
    """Return the places of the elements of each row in order: stable, and a NaN is larger than any number."""
    wide = rows.astype(np.float32) if rows.dtype.name == "bfloat16" else rows
    if not descending:
        return np.asarray(np.argsort(wide, axis=1, kind="stable"), np.int64)
    backwards: NDArray[np.int64] = np.argsort(wide[:, ::-1], axis=1, kind="stable")
    return np.asarray(rows.shape[1] - 1 - backwards[:, ::-1], np.int64)


def _sorted_keys(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of each row in order. Only zeros and NaNs may be equal and have different bits: without both
    kinds of zeros, and without NaNs, no order is needed among equal ones, and NumPy's fastest sort is right."""
    if rows.dtype.kind == "f":
        zeros = rows[rows == 0]
        if np.isnan(rows).any() or (zeros.size and np.signbit(zeros).any() and not np.signbit(zeros).all()):
            return np.sort(rows, axis=1, kind="stable")
    return np.sort(rows, axis=1)


def _first_twin(wanted: PassKernel) -> Callable[..., None]:
    """Return the host body of the first pass. It sorts whole rows, so that later passes have nothing left to do."""

    def body(*arguments: Any) -> None:
        *outputs, rows = arguments
        length = outputs[0].shape[1]
        if wanted.held is None and rows.dtype.name != "bfloat16" and not wanted.descending:
            outputs[0][...] = _sorted_keys(rows)[:, :length]
            return
        places = sorted_places(rows, wanted.descending)[:, :length]
        if wanted.keys:
            outputs[0][...] = np.take_along_axis(rows, places, axis=1)
        if wanted.places is not None:
            outputs[-1][...] = places

    return body


def _merge_twin(outputs: int) -> Callable[..., None]:
    """Return the host body of a merge, whose rows are sorted: it takes as many elements as are wanted."""

    def body(*arguments: Any) -> None:
        inputs = arguments[outputs:-2]
        for out, source in zip(arguments[:outputs], inputs[-outputs:], strict=True):
            out[...] = source[:, : out.shape[1]]

    return body
