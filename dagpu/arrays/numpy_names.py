"""Names of NumPy's, CuPy's and the array API's that are no functions here: what to write instead, or why there is none.

Each function of the namespaces of NumPy and of the array API is here, or in `dagpu.array`, and a test holds that.
"""

from collections.abc import Collection
from typing import Final, NoReturn

from dagpu.common.places import leaves_run

_RENAMED: Final = {
    "max": "amax", "min": "amin", "concat": "concatenate", "absolute": "abs", "fabs": "abs", "power": "pow",
    "round": "rint", "around": "rint", "cumulative_sum": "cumsum", "permute_dims": "transpose",
    "swapaxes": "transpose", "moveaxis": "transpose", "matrix_transpose": "transpose", "hstack": "concatenate",
    "vstack": "concatenate", "column_stack": "stack", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "fix": "trunc",
    "cumulative_prod": "cumprod", "conjugate": "conj", "extract": "compress", "unique_values": "unique",
}  # fmt: skip
_OF_DAGPU: Final = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
OPERATORS: Final = {
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y", "true_divide": "x / y",
    "floor_divide": "x // y", "remainder": "x % y", "mod": "x % y", "equal": "x == y", "not_equal": "x != y",
    "less": "x < y", "less_equal": "x <= y", "greater": "x > y", "greater_equal": "x >= y", "logical_and": "x & y",
    "logical_or": "x | y", "logical_xor": "x ^ y", "bitwise_and": "x & y", "bitwise_or": "x | y",
    "bitwise_xor": "x ^ y", "left_shift": "x << y", "right_shift": "x >> y", "bitwise_left_shift": "x << y",
    "bitwise_right_shift": "x >> y", "negative": "-x", "square": "x * x", "reciprocal": "1 / x", "logical_not": "~x",
    "invert": "~x", "bitwise_invert": "~x", "bitwise_not": "~x", "isclose": "abs(x - y) <= 1e-5",
    "deg2rad": "x * (math.pi / 180)", "radians": "x * (math.pi / 180)", "degrees": "x * (180 / math.pi)",
    "rad2deg": "x * (180 / math.pi)", "isneginf": "x == -math.inf", "isposinf": "x == math.inf",
    "array_equal": "array.all(x == y)", "allclose": "array.all(abs(x - y) <= 1e-5)",
}  # fmt: skip
_CALLS: Final = {
    "append": "array.concatenate((x, y))", "argwhere": "array.stack(places, 1) of the tuple array.nonzero(x)",
    "average": "array.mean(x, axis), or divide sums of x * w and w",
    "argpartition": "array.argsort(x), or array.topk(x, k)", "partition": "array.sort(x), or array.topk(x, k)",
    "broadcast_arrays": "array.broadcast_to(x, shape) for each; expressions broadcast by themselves",
    "cbrt": "expr(f32)(lambda x: array.copysign(array.pow(abs(x), 1 / 3), x))",
    "corrcoef": "array.matmul of rows less their means, divided by their norms",
    "count_nonzero": "array.sum(mask, dtype=i64)", "cov": "array.matmul of rows less their means",
    "diff": "t[1:] - t[:-1] of a shared tensor", "digitize": "array.searchsorted(edges, x)",
    "divmod": "two expressions, x // y and x % y", "dstack": "array.stack((x, y), axis=2)",
    "row_stack": "array.concatenate((x, y))", "empty_like": "dagpu.empty(t.shape, t.dtype)",
    "exp2": "expr(f32)(lambda x: 2 ** x)", "float_power": "array.pow(x, y)",
    "fliplr": "array.flip(x, 1)", "flipud": "array.flip(x, 0)", "rot90": "array.flip(array.transpose(x), 0)",
    "flatnonzero": "array.nonzero(x.reshape((-1,)))",
    "fmax": "expr(f32, f32)(lambda x, y: array.where(array.isnan(x), y, x)) before array.maximum",
    "fmin": "expr(f32, f32)(lambda x, y: array.where(array.isnan(x), y, x)) before array.minimum",
    "fmod": "expr(f32, f32)(lambda x, y: x - array.trunc(x / y) * y)",
    "heaviside": "expr(f32)(lambda x: array.where(x > 0, 1.0, 0.0))",
    "identity": "dagpu.eye(n)", "inner": "array.matmul(x, y, transpose='b')", "vdot": "array.matmul(array.conj(x), y)",
    "vecdot": "expr(f32, f32)(lambda x, y: x * y).sum(-1)", "matvec": "array.matmul(x, v)",
    "vecmat": "array.matmul(v, x)",
    "outer": "array.matmul of x.reshape((-1, 1)) and y.reshape((1, -1))", "vector_norm": "array.norm(x, axis)",
    "matrix_norm": "array.norm(x, (-2, -1))",
    "svdvals": "array.svd(x)[1]", "inv": "array.solve(x, dagpu.eye(n))",
    "isnat": "array.isnan(x)", "lexsort": "array.argsort, from the last key to the first, with array.take",
    "logaddexp2": "expr(f32, f32)(lambda x, y: array.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2))",
    "modf": "two expressions, x - array.trunc(x) and array.trunc(x)",
    "nan_to_num": "expr(f32)(lambda x: array.where(array.isnan(x), 0.0, x))",
    "nancumsum": "array.cumsum of expr(f32)(lambda x: array.where(array.isnan(x), 0.0, x))",
    "nancumprod": "array.cumprod of expr(f32)(lambda x: array.where(array.isnan(x), 1.0, x))",
    "nanargmax": "array.argmax of expr(f32)(lambda x: array.where(array.isnan(x), -math.inf, x))",
    "nanargmin": "array.argmin of expr(f32)(lambda x: array.where(array.isnan(x), math.inf, x))",
    "percentile": "array.quantile(x, q / 100)", "ptp": "array.amax(x) and array.amin(x), and subtract",
    "sinc": "expr(f32)(lambda x: array.where(x == 0, 1.0, array.sin(math.pi * x) / (math.pi * x)))",
    "spacing": "expr(f32)(lambda x: array.nextafter(x, math.inf) - x)",
    "select": "array.where, one in the other", "choose": "array.where, one in the other",
    "piecewise": "array.where, one in the other",
    "put": "array.scatter_set(into, indices, values)", "put_along_axis": "array.scatter_set(into, indices, values)",
    "trace": "expr(f32, f32)(lambda x, e: x * e).sum(), with dagpu.eye(n) for e",
    "tri": "array.tril(dagpu.ones((n, m)))",
    "fftfreq": "dagpu.from_host(np.fft.fftfreq(n))", "rfftfreq": "dagpu.from_host(np.fft.rfftfreq(n))",
    "iscomplex": "expr(c64)(lambda z: z.imag != 0)", "isreal": "expr(c64)(lambda z: z.imag == 0)",
    "from_dlpack": "dagpu.adopt(x)", "ReductionKernel": "expr(f32)(lambda x: x * x).sum()", "fuse": "dagpu.expr",
    "union1d": "array.unique(array.concatenate((x, y)))",
    "unique_inverse": "array.unique(x), and array.searchsorted(values, x) of a shared x",
    "scatter_update": "array.scatter_set(into, indices, values)",
}  # fmt: skip
_OF_HANDLES: Final = {
    "t.reshape(shape)": "atleast_1d atleast_2d atleast_3d expand_dims ravel squeeze rollaxis",
    "t[:n], or t.partition for tiles": "split array_split hsplit vsplit dsplit unstack",
    "t.shape": "shape ndim size",
    "dagpu.memcpy(into, t)": "copyto",
}
"""What a handle does, for names of functions."""

_WHY: Final = {
    "The shape of its result is known by a run alone: compute it on the host, np.{name}(t.to_host().sync())": (
        "unique_all intersect1d setdiff1d setxor1d trim_zeros delete insert"
    ),
    "It is of the host, where arrays are NumPy's: dagpu.from_host(np.{name}(...)) makes a tensor of what it returns": (
        "array array2string array_repr array_str asanyarray asarray_chkfinite ascontiguousarray asfortranarray asmatrix"
        " bartlett blackman hamming hanning kaiser base_repr binary_repr block bmat broadcast_shapes busday_count"
        " busday_offset is_busday datetime_as_string datetime_data diag_indices diag_indices_from einsum_path"
        " format_float_positional format_float_scientific frombuffer fromfile fromfunction fromiter frompyfunc"
        " fromregex fromstring genfromtxt geomspace get_include get_printoptions getbufsize geterr geterrcall indices"
        " info ix_ load loadtxt logspace mask_indices nested_iters printoptions save savetxt savez savez_compressed"
        " set_printoptions setbufsize seterr seterrcall show_config show_runtime test tril_indices tril_indices_from"
        " triu_indices triu_indices_from typename vander poly polyadd polyder polydiv polyfit polyint polymul polysub"
        " roots histogram_bin_edges i0 require"
    ),
    "It tells of element types, which are known: dagpu does not convert them by itself": (
        "can_cast common_type min_scalar_type mintypecode promote_types result_type issubdtype isdtype isscalar"
        " iterable iscomplexobj isrealobj isfortran may_share_memory shares_memory array_equiv"
    ),
    "It is of complex numbers, which have no order: array.sort(array.real(z)) sorts one part of them": "sort_complex",
    "It has a result whose type depends on contents: array.real takes the real part": "real_if_close",
    "It is array.irfft or array.rfft of conjugates: array.irfft(array.conj(z), n, norm='forward'), say": "hfft ihfft",
    "It has no kernel yet: array.cumsum of the differences that an expression rounds does it": "unwrap",
    "It changes a part of a tensor: array.where makes a new one, and array.scatter_set changes one in place": (
        "fill_diagonal place putmask resize"
    ),
    "It calls a Python function for each row, which no kernel can: an expression, or a kernel, does the work of one": (
        "apply_along_axis apply_over_axes"
    ),
    "It is made of matrix products: array.matmul, after array.transpose and t.reshape": ("kron cross"),
    "It needs a factorisation that dagpu does not have: compute it on the host, np.linalg.{name}": (
        "pinv det slogdet eig eigh eigvals eigvalsh lstsq matrix_power matrix_rank cond multi_dot tensorinv tensorsolve"
    ),
    "It sees the neighbours of an element: array.stencil makes a kernel of an expression of them": (
        "gradient ediff1d interp trapezoid"
    ),
    "It has no kernel yet: array.take of places that NumPy computes does it, array.take(x, dagpu.from_host(places))": (
        "diag diagflat diagonal isin ravel_multi_index unravel_index"
    ),
    "It has no kernel yet: an expression of integers, or a kernel, does it": (
        "bitwise_count gcd lcm frexp ldexp packbits unpackbits polyval"
    ),
    "It has no kernel yet: array.nanmean and array.sort are the parts of it": (
        "nanmedian nanpercentile nanquantile nanstd nanvar"
    ),
    "It has no kernel yet: array.bincount of the places that array.searchsorted gives does it": (
        "histogram2d histogramdd"
    ),
}
"""Why a function is not here, with the names. A reason names what to do."""

LEFT_OUT: Final[dict[str, str]] = {
    name: why.replace("{name}", name) for why, names in _WHY.items() for name in names.split()
}
"""The reasons by name, as sentences without their full stop."""

NUMPY_NAMES: Final[dict[str, str]] = {
    **{name: f"Write array.{ours}" for name, ours in _RENAMED.items()},
    **{name: f"Write dagpu.{name}" for name in _OF_DAGPU},
    **{name: f"Write {text}" for name, text in OPERATORS.items()},
    **{name: f"Write {text}" for name, text in _CALLS.items()},
    **{name: f"Write {text}" for text, names in _OF_HANDLES.items() for name in names.split()},
    "asarray": "Write dagpu.from_host(x)",
    "astype": "Write dagpu.convert(t, f32)",
    "copy": "Write dagpu.dup(t)",
    "reshape": "Write t.reshape(shape)",
}
"""The cures, as sentences without their full stop."""


_ELEMENT_TYPES: Final = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
CUPY_NAMES: Final = {
    "asnumpy": "Write t.to_host().sync()",
    "ElementwiseKernel": "Write dagpu.expr",
    "RawKernel": "Write dagpu.kernel",
    "RawModule": "Write dagpu.kernel",
    "get_array_module": "Write dagpu.array",
}
"""The cures for names that only CuPy has."""
PACKAGE_NAMES: Final[dict[str, str]] = {
    **{name: cure for name, cure in NUMPY_NAMES.items() if name not in (*_OF_DAGPU, "trace")},
    **{name: f"Write dagpu.{ours}" for name, ours in _ELEMENT_TYPES.items()},
    **CUPY_NAMES,
}
"""The cures for names of NumPy's and CuPy's that the package lacks, beside those of the functions of `dagpu.array`."""


@leaves_run
def refuse_name_of_package(name: str, of_array: Collection[str]) -> NoReturn:
    """Raise the error for a name that `dagpu` lacks, with what does the work of NumPy's or CuPy's of this name.
    `of_array` has the names of `dagpu.array`."""
    text = f"module 'dagpu' has no attribute {name!r}"
    cure = f"Write dagpu.array.{name}" if name in of_array else PACKAGE_NAMES.get(name) or LEFT_OUT.get(name)
    raise AttributeError(text if cure is None else f"{text}. {cure.replace('Write array.', 'Write dagpu.array.')}.")


@leaves_run
def refuse_name(name: str) -> NoReturn:
    """Raise the error for a name that `dagpu.array` lacks, with what does the work of NumPy's of this name."""
    text = f"module 'dagpu.array' has no attribute {name!r}"
    cure = NUMPY_NAMES.get(name) or LEFT_OUT.get(name) or CUPY_NAMES.get(name)
    raise AttributeError(text if cure is None else f"{text}. {cure}.")
