"""The public names, their methods and their parameters, held as one table.

What stands here keeps its name and meaning. More names, more methods, and more parameters that have defaults
may be added: the table says what must be there, and not what else may be.
"""

import ast
import inspect
from collections.abc import Iterator

import numpy as np
import pytest

import dagpu
from dagpu import grad as gradients
from dagpu.entry.public import BY_NAME_ONLY

# A class and its members: `name` is a property, `name(...)` a method with these parameters after `self`.
CLASSES: dict[str, str] = {
    "Tensor": """
        shape; strides; dtype; ndim; size; nbytes; device; partition(tile, *, partial=...); share();
        reshape(shape); to_host(); borrow(); borrow_mut(); view(shape); slice(*ranges); __getitem__(index)
    """,
    "SharedTensor": """
        shape; strides; dtype; ndim; size; nbytes; device; clone(); try_unwrap(); reshape(shape); to_host();
        view(dtype); slice(*ranges); __getitem__(index)
    """,
    "TensorRef": """
        shape; strides; dtype; ndim; size; nbytes; device; reshape(shape); slice(*ranges); to_host();
        view(dtype); __getitem__(index)
    """,
    "TensorMut": """
        shape; strides; dtype; ndim; size; nbytes; device; partition(tile, *, partial=...); view(dtype);
        slice(*ranges); __getitem__(index)
    """,
    "Partition": "shape; dtype; tile; grid; unpartition()",
    "DeviceOp": """
        __await__(); sync(); sync_on(stream); schedule(policy); on(place); then(f); map(f); host_map(f);
        inspect(f); shared(); unzip(n=...); first(); last(); partition(tile, *, partial=...); unpartition();
        share(); reshape(shape); view(dtype); __getitem__(index); to_host(); explain(); to_dot()
    """,
    "KernelOp": "unzip(n=...); first()",
    "Kernel": """
        __call__(*args, **kwargs); host(body, /); grid(*grid); block(*block); shared_memory(nbytes); compile();
        check(*args, tolerance=...)
    """,
    "Expression": "cuda; __call__(*args, **kwargs); into(out, /, *args, **kwargs); update(out, /, *args, **kwargs)",
    "Elem": "to(dtype, /); equals(other, /)",
    "Tile": "at; index",
    "Interpreter": "run(op, /); run_sync(op, /)",
    "StreamInterpreter": "__init__(device=..., policy=...); run(op, /); run_sync(op, /)",
    "Device": "name; kind; index; stream(); memory_info(); memory_used()",
    "Stream": "device; handle",
    "SchedulingPolicy": "place(program)",
    "SingleStream": "__init__(); place(program)",
    "RoundRobin": "__init__(streams=...); place(program)",
    "ListSchedule": """
        __init__(streams=..., costs=..., memory_limit=..., runs=..., recompute=...); place(program)
    """,
    "Pending": "__await__(); cancel(); done()",
    "Flow": """
        __aenter__(); __aexit__(kind, error, trace); map(f, /); where(f, /); take(n, /); window(n, /, step=...);
        run(f, /, *, in_flight=..., memory=..., ordered=...); fold(state, f, /, *, in_flight=...); latest();
        at_most(per_second, /); batched(most, /, *, within=...); switch(f, /); into(target, /)
    """,
    "Feed": "__aiter__(); __anext__(); next(); explain()",
    "Ask": "stats; __call__(x, /)",
    "Stats": "rate; waiting; latency(quantile=...)",
    "Mesh": "devices; shape; axes; along(axis)",
    "Layout": "boxes(shape, mesh, /)",
    "Blocks": "__init__(axes=..., *, partial=...); boxes(shape, mesh, /)",
    "Cyclic": "__init__(tile); boxes(shape, mesh, /)",
    "Sharded": "mesh; dtype; shape; nbytes; layout; borrow(); to_host()",
    "ShardedRef": "mesh; dtype; shape; nbytes; layout",
    "Replicated": "mesh; dtype; shape; nbytes; to_host()",
    "Partials": "mesh; dtype; shape; nbytes",
    "Haloed": "mesh; dtype; shape; nbytes; width",
    "Each": "mesh; __iter__()",
    "DevicePolicy": "assign(program, mesh, /)",
    "Spread": "assign(program, mesh, /); place(program)",
    "Program": "devices; buffers; instructions; policies; policy_of",
    "Plan": """
        devices; lanes; buffers; steps; events; peak_bytes; offsets; arena_bytes; program;
        to_svg(*, costs=..., until=...); save_svg(path, *, costs=..., until=...); memory_to_svg();
        save_memory_svg(path)
    """,
    "Link": "__init__(latency, bandwidth, ports=...)",
    "Links": "__init__(peer=..., host=..., node=...); between(one, other); measured(mesh)",
    "Part": "worker; plan; imports; exports; seconds; peak_bytes",
    "Progress": "done; running; total; redone; lost_workers",
    "Tls": "__init__(ca, certificate, key)",
    "WorkerInfo": "address; devices; versions",
    "Cluster": """
        connect(address, *, tls=..., part_seconds=..., window=..., allowed_failures=..., timeout=..., code=...);
        local(workers=..., devices=..., *, part_seconds=..., code=...); workers; mesh; dashboard; run(op, /);
        run_sync(op, /); explain(op); progress()
    """,
    "Source": "revision; get(); set(x, /); change(f, /); write(at, data, /)",
    "CudaGraph": "take_output(); update(op); launch(); stream; scope(stream)",
    "Scope": "record(op); graph",
    "Module": "forward(input, /)",
    "Pipeline": "__call__(*args, **kwargs)",
    "Lent": """
        __dlpack__(*, stream=..., max_version=..., dl_device=..., copy=...); __dlpack_device__();
        __cuda_array_interface__; shape; dtype
    """,
    "Foreign": "on(library, /, *, host=...); raw(body, /); host(body, /); __call__(*args, **kwargs)",
    "ForeignFunction": "on(library, /, *, host=...); raw(body, /); host(body, /); __call__(*args, **kwargs)",
    "Rank": "number; device; boxes; coordinate(axis)",
    "Borrowed": "",
    "Static": "",
    "MayAlloc": "",
    "NoAlloc": "",
}

FUNCTIONS = """
    value(x); zip_ops(*ops); empty(shape, dtype=...); zeros(shape, dtype=...); ones(shape, dtype=...);
    full(shape, fill_value, dtype=...); arange(stop, dtype=...); linspace(start, stop, num, dtype=...);
    eye(n, m=..., dtype=...); rand(shape, dtype=..., *, seed=...);
    randn(shape, dtype=..., *, mean=..., std=..., seed=...); from_host(array); dup(t); memcpy(dst, src);
    convert(t, dtype); fill(t, fill_value);
    expr(*types_or_function); kernel(name=..., /, *, cuda, block=..., abi=..., options=..., checked=...);
    use_interpreter(interpreter); device(name=...); current_device(); devices(); use_device(place);
    spawn(nursery, op);
    pipeline(f=..., *, cache_size=..., graph_from=..., check=...); in_trio(function, /, *args);
    source(x, /, *, equal=..., name=...); batch(); cutoff(op, /, equal=...);
    observe(op, /, *, memory=..., check=...); stream_of(x, place=...); from_array(x, dtype=..., *, stream=...);
    adopt(x, dtype=..., *, stream=...); share_array(x, dtype=..., *, stream=...); lend(x, dtype=..., *, stream=...);
    lend_mut(x, dtype=..., *, stream=...); lent_out(t, *, stream=...); unversioned(t);
    triton_kernel(jit, /, *, num_warps=..., num_stages=..., constexprs=...);
    numba_kernel(function, /, *, block=..., fastmath=...); cutile_kernel(function, /, *, constants=...);
    use_mesh(mesh); place(program, policy, mesh); verify_placement(before, after); peak_bytes_on(plan);
    cut(program, mesh, *, part_seconds, costs=...); verify_parts(program, parts); checkpoint(t, store);
    flow(items, /); every(seconds, /); merge(*flows); zip_flows(*flows);
    shard(t, mesh, layout=...); shard_host(array, mesh, layout=...); sharded_empty(shape, dtype, mesh, layout=...);
    gather(s, on=...); reshard(s, layout, mesh=...); each(function, /, *args); unzip_each(e, n=...);
    as_shards(e, shape, layout=...); as_partials(e); broadcast(t, mesh); all_gather(s, *, axis=...);
    all_reduce(p, how=..., *, axis=...); reduce_scatter(p, layout=..., how=...); halo(s, width, *, wrap=...);
    batching(f, /, *, most, within=..., in_flight=...); watch(feed, /, *, total=..., title=..., console=...)
"""

ARRAY_FUNCTIONS = """
    abs(x, /); ceil(x, /); cos(x, /); erf(x, /); exp(x, /); expm1(x, /); floor(x, /); isfinite(x, /); isnan(x, /);
    log(x, /); log1p(x, /); rint(x, /); sin(x, /); sqrt(x, /); tanh(x, /);
    acos(x, /); acosh(x, /); asin(x, /); asinh(x, /); atan(x, /); atanh(x, /); cosh(x, /); isinf(x, /); log10(x, /);
    log2(x, /); positive(x, /); sign(x, /); signbit(x, /); sinh(x, /); tan(x, /); trunc(x, /);
    atan2(a, b, /); copysign(a, b, /); hypot(a, b, /); logaddexp(a, b, /); nextafter(a, b, /);
    clip(x, low=..., high=..., /); maximum(a, b, /); minimum(a, b, /); pow(a, b, /); where(condition, a, b, /);
    all(x, axis=..., *, keepdims=...); amax(x, axis=..., *, keepdims=...); amin(x, axis=..., *, keepdims=...);
    any(x, axis=..., *, keepdims=...); mean(x, axis=..., *, keepdims=...); norm(x, axis=..., *, keepdims=...);
    prod(x, axis=..., *, dtype=..., keepdims=...); sum(x, axis=..., *, dtype=..., keepdims=...);
    argmax(x, axis=..., *, keepdims=...); argmin(x, axis=..., *, keepdims=...); nansum(x, axis=..., *, keepdims=...);
    nanprod(x, axis=..., *, keepdims=...); nanmean(x, axis=..., *, keepdims=...);
    nanmax(x, axis=..., *, keepdims=...); nanmin(x, axis=..., *, keepdims=...);
    median(x, axis=..., *, keepdims=...); quantile(x, q, axis=..., *, keepdims=...);
    concatenate(parts, axis=...); cumsum(x, axis=...); one_hot(indices, n, dtype=...);
    matmul(a, b, *, transpose=..., precision=...);
    scatter_add(into, indices, values); softmax(x, axis=...); stack(parts, axis=...); take(x, indices, axis=...);
    transpose(x, axes=...); flip(x, axis=...); roll(x, shift, axis=...); tile(x, reps); repeat(x, repeats, axis=...);
    broadcast_to(x, shape); meshgrid(*xs, indexing=...); tril(x, k=...); triu(x, k=...);
    pad(x, pad_width, mode=..., *, constant_values=...); cumprod(x, axis=...); cummax(x, axis=...); cummin(x, axis=...);
    logsumexp(x, axis=..., *, keepdims=...); log_softmax(x, axis=...);
    scatter_set(into, indices, values); scatter_max(into, indices, values); scatter_min(into, indices, values);
    segment_sum(values, segments, n); csr_matmul(data, indices, indptr, b); take_along_axis(x, indices, axis=...);
    nonzero(x, *, size=..., fill_value=...); compress(condition, x, axis=..., *, size=..., fill_value=...);
    unique(x, *, size=..., fill_value=...); unique_counts(x, *, size=..., fill_value=...);
    searchsorted(edges, values, side=...); bincount(x, length); histogram(x, bins, range);
    einsum(subscripts, *operands); tensordot(a, b, axes=...); dot(a, b);
    uniform(shape, low=..., high=..., dtype=..., *, seed=...); exponential(shape, scale=..., dtype=..., *, seed=...);
    bernoulli(shape, p=..., *, seed=...); randint(shape, low, high, dtype=..., *, seed=...);
    choice(x, count, *, replace=..., seed=...);
    stencil(dtype, radius=..., *, border=..., constant_value=...);
    zeros_like(x); ones_like(x); full_like(x, fill_value);
    real(x, /); imag(x, /); conj(x, /); angle(x, /);
    fft(x, n=..., axis=..., norm=...); ifft(x, n=..., axis=..., norm=...); rfft(x, n=..., axis=..., norm=...);
    irfft(x, n=..., axis=..., norm=...); fft2(x, s=..., axes=..., norm=...); ifft2(x, s=..., axes=..., norm=...);
    rfft2(x, s=..., axes=..., norm=...); irfft2(x, s=..., axes=..., norm=...); fftn(x, s=..., axes=..., norm=...);
    ifftn(x, s=..., axes=..., norm=...); rfftn(x, s=..., axes=..., norm=...); irfftn(x, s=..., axes=..., norm=...);
    cholesky(a); solve(a, b); qr(a); svd(a, full_matrices=...);
    fftshift(x, axes=...); ifftshift(x, axes=...); convolve(a, v, mode=...); correlate(a, v, mode=...)
"""

GRADIENT_FUNCTIONS = """
    value_and_grad(f, /); grad(f, /); vjp(f, by, /, *, cotangent); stop_gradient(x, /); derivative(e, by=..., /);
    gradient_of(f, /); updated(model, f, step, /, *states); parameters(model); zip_parameters(a, b);
    assert_gradient(f, model, /, *args, **kwargs); sgd(w, g, rate, /); momentum(w, g, v, /, rate, beta=...);
    adam(w, g, m, v, /, count, rate=..., beta1=..., beta2=..., epsilon=...)
"""

ERRORS: dict[str, tuple[str, ...]] = {
    "DagpuError": ("Exception",),
    "OwnershipError": ("DagpuError",),
    "MovedError": ("OwnershipError",),
    "BorrowError": ("OwnershipError",),
    "PartitionError": ("DagpuError", "ValueError"),
    "ShapeError": ("DagpuError", "ValueError"),
    "KernelArgumentError": ("DagpuError", "TypeError"),
    "KernelBoundsError": ("DagpuError", "IndexError"),
    "KernelFaultError": ("DagpuError",),
    "KernelRaceError": ("KernelFaultError",),
    "KernelUninitialisedError": ("KernelFaultError",),
    "KernelUnwrittenError": ("KernelFaultError",),
    "KernelBarrierError": ("KernelFaultError",),
    "KernelAssertionError": ("KernelFaultError", "AssertionError"),
    "KernelMismatchError": ("KernelFaultError",),
    "CompileError": ("DagpuError",),
    "NotReadyError": ("DagpuError",),
    "NestedRunError": ("DagpuError",),
    "PlanError": ("DagpuError",),
    "OperationCancelled": ("DagpuError",),
    "GradientError": ("DagpuError",),
    "CaptureError": ("DagpuError",),
    "DeviceError": ("DagpuError",),
    "OutOfMemoryError": ("DeviceError", "MemoryError"),
    "DeviceLostError": ("DeviceError",),
    "NoDeviceError": ("DeviceError",),
}

ELEMENT_TYPES: dict[str, type[np.generic]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool_": np.bool_,
    "c64": np.complex64,
    "c128": np.complex128,
}

ALIASES = ("In", "Out", "Lazy", "Shape", "bf16", "Reduction", "Region", "Expr1", "Expr2", "Expr3", "Expr8")

# Any class may have more bases than the table says; these are both a phantom parameter and its bound.
SUBCLASSES = [("Static", "Borrowed"), ("NoAlloc", "MayAlloc"), ("KernelOp", "DeviceOp")]


def members(table: str) -> Iterator[str]:
    """The entries of a table, without the white space around them."""
    return (entry.strip() for entry in table.split(";") if entry.strip())


def test_every_public_name_is_exported() -> None:
    """Each name of the contract is in `dagpu.__all__`, or by name only, and all that these list is there."""
    functions = {entry.partition("(")[0] for entry in members(FUNCTIONS)}
    wanted = {*CLASSES, *functions, *ERRORS, *ELEMENT_TYPES, *ALIASES}
    listed = [*dagpu.__all__, *BY_NAME_ONLY]
    assert sorted(wanted - set(listed)) == []
    assert [name for name in listed if not hasattr(dagpu, name)] == []
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("owner", "entry"), [(name, entry) for name, table in CLASSES.items() for entry in members(table)]
)
def test_a_class_has_the_members_of_the_contract(owner: str, entry: str) -> None:
    """A method takes the parameters the contract gives it, by name and kind; a property is no method."""
    name, is_method, _ = entry.partition("(")
    member = inspect.getattr_static(getattr(dagpu, owner), name)
    if not is_method:
        assert not inspect.isfunction(member), f"{owner}.{name} is a property"
        return
    assert lacks(entry, member, method=True) == []


@pytest.mark.parametrize("entry", list(members(FUNCTIONS)))
def test_a_function_takes_the_parameters_of_the_contract(entry: str) -> None:
    """A function takes the parameters the contract gives it, by name, order and kind."""
    assert lacks(entry, getattr(dagpu, entry.partition("(")[0]), method=False) == []


def test_every_function_of_tensors_is_exported() -> None:
    """Each name of the contract is in `dagpu.array.__all__`, and all that `__all__` names is there."""
    wanted = {entry.partition("(")[0] for entry in members(ARRAY_FUNCTIONS)}
    assert sorted(wanted - set(dagpu.array.__all__)) == []
    assert [name for name in dagpu.array.__all__ if not hasattr(dagpu.array, name)] == []


@pytest.mark.parametrize("entry", list(members(ARRAY_FUNCTIONS)))
def test_a_function_of_tensors_takes_the_parameters_of_the_contract(entry: str) -> None:
    """A function of `dagpu.array` takes the parameters the contract gives it, by name, order and kind."""
    assert lacks(entry, getattr(dagpu.array, entry.partition("(")[0]), method=False) == []


@pytest.mark.parametrize("entry", list(members(GRADIENT_FUNCTIONS)))
def test_a_function_of_gradients_takes_the_parameters_of_the_contract(entry: str) -> None:
    """A function of `dagpu.grad` takes the parameters the contract gives it; the classes are there too."""
    name = entry.partition("(")[0]
    assert {name, "Parameterized", "Rule"} <= set(gradients.__all__)
    assert lacks(entry, getattr(gradients, name), method=False) == []


@pytest.mark.parametrize(("name", "bases"), ERRORS.items())
def test_an_error_is_what_the_contract_says(name: str, bases: tuple[str, ...]) -> None:
    """Every error is a DagpuError, and also the built-in error that code without dagpu would catch."""
    error = getattr(dagpu, name)
    builtin: dict[str, type] = {
        kind.__name__: kind for kind in (Exception, ValueError, TypeError, IndexError, MemoryError, AssertionError)
    }
    for base in bases:
        assert issubclass(error, builtin.get(base) or getattr(dagpu, base))
    assert issubclass(error, dagpu.DagpuError)


@pytest.mark.parametrize(("name", "kind"), ELEMENT_TYPES.items())
def test_an_element_type_is_numpys_own(name: str, kind: type[np.generic]) -> None:
    """A short name is NumPy's scalar type itself, so that either may be written."""
    assert getattr(dagpu, name) is kind


@pytest.mark.parametrize(("lower", "upper"), SUBCLASSES)
def test_subclasses_of_the_contract(lower: str, upper: str) -> None:
    """Free of borrows is a kind of may-borrow, and free of allocation a kind of may-allocate."""
    assert issubclass(getattr(dagpu, lower), getattr(dagpu, upper))


def lacks(entry: str, function: object, *, method: bool) -> list[str]:
    """Return the parts of the entry's signature that the function's lacks, one line each. It may have more parameters.

    `inspect` reads what a wrapper wraps, and `*name` stands for any way of taking many by position.
    """
    if isinstance(function, classmethod | staticmethod):
        function = function.__func__
    assert callable(function), f"{entry} is not callable"
    given = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wrong: list[str] = []
    matched: list[inspect.Parameter] = []
    for index, (name, kind, has_default) in enumerate(parameters(entry)):
        found = next((p for p in given if (p.kind is kind if kind in many else p.name == name)), None)
        if kind is inspect.Parameter.POSITIONAL_ONLY:
            found = given[index] if index < len(given) else None
        if found is None:
            wrong.append(f"{entry}: has no parameter {name}")
            continue
        matched.append(found)
        if has_default and found.default is found.empty:
            wrong.append(f"{entry}: {name} has no default")
        if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and (found.kind, given.index(found)) != (
            kind,
            index,
        ):
            wrong.append(f"{entry}: {name} cannot be given by name and also by position, as number {index + 1}")
    wrong += [
        f"{entry}: {parameter.name} is added without a default"
        for parameter in given
        if parameter not in matched and parameter.default is parameter.empty and parameter.kind not in many
    ]
    return wrong


def parameters(entry: str) -> list[tuple[str, inspect._ParameterKind, bool]]:
    """Name, kind and whether there is a default, for each parameter of `full(shape, dtype=...)`, say."""
    (definition,) = ast.parse(f"def {entry}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    spec, kinds = definition.args, inspect.Parameter
    plain = [
        *((a.arg, kinds.POSITIONAL_ONLY) for a in spec.posonlyargs),
        *((a.arg, kinds.POSITIONAL_OR_KEYWORD) for a in spec.args),
    ]
    required = len(plain) - len(spec.defaults)
    found: list[tuple[str, inspect._ParameterKind, bool]] = [
        (name, kind, index >= required) for index, (name, kind) in enumerate(plain)
    ]
    if spec.vararg:
        found.append((spec.vararg.arg, kinds.VAR_POSITIONAL, False))
    found += [
        (a.arg, kinds.KEYWORD_ONLY, default is not None)
        for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    ]
    if spec.kwarg:
        found.append((spec.kwarg.arg, kinds.VAR_KEYWORD, False))
    return found
