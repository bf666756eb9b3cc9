"""Full names, as mypy spells them, of the functions and classes that the rules mention. Those of dagpu's come from
`dagpu.common.facts`."""

from collections.abc import Iterable
from typing import Final

from dagpu.common import facts
from dagpu.common.facts import full_name


def _all(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(full_name, names))


def _of(owners: str, names: str) -> frozenset[str]:
    """Return the full names of attributes of modules or classes, each of each: both are lists with spaces."""
    return frozenset(f"{owner}.{name}" for owner in owners.split() for name in names.split())


TENSOR: Final = full_name("Tensor")
SHARED_TENSOR: Final = full_name("SharedTensor")
TENSOR_REF: Final = full_name("TensorRef")
TENSOR_MUT: Final = full_name("TensorMut")
PARTITION: Final = full_name("Partition")
LENT: Final = frozenset((TENSOR_REF, TENSOR_MUT))
"""Borrows of a tensor."""
ARRAYS: Final = LENT | {TENSOR, SHARED_TENSOR}
"""Tensors and borrows of them."""
HANDLES: Final = ARRAYS | {PARTITION}
"""The handles of one device."""

SHARDED: Final = full_name("Sharded")
SHARDED_REF: Final = full_name("ShardedRef")
PARTIALS: Final = full_name("Partials")

FLOW: Final = full_name("Flow")
FEED: Final = full_name("Feed")
OUTLASTS_FEED: Final = _all(facts.OUTLASTS_FEED)
"""Attributes of a feed that remain after its block."""

DEVICE_OP: Final = full_name("DeviceOp")
_TWO_SIDED: Final = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"]
OPERATOR_METHODS: Final = (
    *_TWO_SIDED, *[f"r{name}" for name in _TWO_SIDED], "matmul", "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos",
    "abs", "invert",
)  # fmt: skip
STATIC: Final = full_name("Static")
BORROWED: Final = full_name("Borrowed")
NO_ALLOC: Final = full_name("NoAlloc")
KERNEL: Final = full_name("Kernel")
KERNEL_CALL: Final = full_name("Kernel.__call__")
NEW_OUTPUT: Final = full_name("NewOutput")
NEW_OUTPUT_CALL: Final = full_name("NewOutput.__call__")
NEW_OUTPUTS: Final = full_name("NewOutputs")
NEW_OUTPUTS_CALL: Final = full_name("NewOutputs.__call__")
KERNEL_DECORATOR: Final = full_name("kernel")
SOURCE: Final = full_name("Source")
MAKE_SOURCE: Final = full_name("source")

SLICE: Final = "builtins.slice"
BOOL: Final = "builtins.bool"
ASKS_TRUTH: Final = _of("operator _operator", "not_ truth") | {BOOL}
"""Functions that ask their argument whether it is true."""
ASKED: Final = _of("builtins", "len bool abs iter next reversed str repr int float complex hash round")
"""Functions that call the method of their own name of their argument."""
ITERATES: Final = _of("builtins", "list tuple set frozenset sorted sum any all enumerate")
"""Functions that go over the items of their first argument."""
ASKS_ITEMS: Final = frozenset({"builtins.any", "builtins.all"})
"""Functions that ask the items of their argument whether they are true."""
HERE: Final = full_name("Here")
AROUND: Final = full_name("Around")
ROWS: Final = full_name("Rows")
COLUMNS: Final = full_name("Columns")
ALONG: Final = full_name("Along")

VALUE: Final = full_name("value")
THEN: Final = full_name("DeviceOp.then")
ZIP_OPS: Final = full_name("zip_ops")
EACH: Final = full_name("each")
SPAWN: Final = full_name("spawn")
CUDA_GRAPH: Final = full_name("CudaGraph")
SCOPE: Final = full_name("Scope")
FOREIGN_CALL: Final = full_name("Foreign.__call__")
FOREIGN_FUNCTION_CALL: Final = full_name("ForeignFunction.__call__")
EXPRESSION_DECORATOR: Final = full_name("expr")
EXPRESSION: Final = full_name("Expression")
EXPRESSION_CALL: Final = full_name("Expression.__call__")
REDUCED_EXPRESSION_CALL: Final = full_name("ReducedExpression.__call__")
TUPLE_EXPRESSION: Final = full_name("TupleExpression")
TUPLE_EXPRESSION_CALL: Final = full_name("TupleExpression.__call__")
EXPRESSION_INTO: Final = full_name("Expression.into")
EXPRESSION_UPDATE: Final = full_name("Expression.update")
ARRAY_FUNCTIONS: Final = full_name("array") + "."
"""The start of the full names of the functions of `dagpu.array`."""
MATMUL: Final = full_name("array.matmul")
INTEROP: Final = full_name("interop")
ADOPT: Final = full_name("adopt")
"""The function that takes an array of another library over from the program."""
PIPELINE: Final = full_name("Pipeline")
PIPELINE_CALL: Final = full_name("Pipeline.__call__")
PIPELINE_DECORATOR: Final = full_name("pipeline")

TAKES_ALL: Final = {
    **dict.fromkeys((KERNEL_CALL, NEW_OUTPUT_CALL, NEW_OUTPUTS_CALL), "being passed to a kernel"),
    **dict.fromkeys((FOREIGN_CALL, FOREIGN_FUNCTION_CALL), "being passed to a foreign op"),
    **dict.fromkeys(
        (EXPRESSION_CALL, REDUCED_EXPRESSION_CALL, TUPLE_EXPRESSION_CALL, EXPRESSION_INTO, EXPRESSION_UPDATE),
        "being passed to an expression",
    ),
    PIPELINE_CALL: "being passed to a pipeline",
    ZIP_OPS: "zip_ops()",
    EACH: "each()",
}
"""Functions that take all of their arguments by value, each with the words of the run-time error."""

MOVES_SELF: Final = {full_name(name): how for name, how in facts.MOVES_SELF.items()}
"""Methods that move the handle they are called on, each with the words of the run-time error."""

LENDS_SELF: Final = {full_name(name): exclusive for name, exclusive in facts.LENDS_SELF.items()}
"""Methods that borrow the handle they are called on; True for a borrow for writing."""

NEVER_RAISES: Final = _all(facts.NEVER_RAISES)
"""Methods that raise only `MovedError`. The plugin reports that error itself, so these calls have no exception edge."""

RUNS: Final = _all(facts.RUNS)
"""Methods that run an op."""

RUN_AGAIN: Final = _all(facts.RUN_AGAIN)
"""Functions whose ops may run several times, whatever moves into them."""

USED_AGAIN: Final = _all(facts.USED_AGAIN)
"""Functions whose ops may be used several times in one run, or that give back an op of their argument."""

SYSTEM_TASKS: Final = frozenset({"trio._core._generated_run.spawn_system_task"})
"""Functions that start a task outside every nursery of the program."""
STARTS_TASK: Final = frozenset({"trio._core._run.Nursery.start_soon", "trio._core._run.Nursery.start"}) | SYSTEM_TASKS
SETS_ATTRIBUTE: Final = "builtins.setattr"

PARTIAL: Final = "functools.partial"
ASKS_FEED: Final = frozenset({"builtins.anext"})
"""Functions that ask a feed for a value."""
ENDS_WITH_BLOCK: Final = _of("contextlib", "_GeneratorContextManager _AsyncGeneratorContextManager")
"""Context managers made of a generator: what is open in it is closed at the end of the block."""
LENDS_FOR_BLOCK: Final = {full_name(name): exclusive for name, exclusive in facts.LENDS_FOR_BLOCK.items()}
"""Functions that lend an array of another library for a block; True for a loan for writing."""

MAP: Final = "builtins.map"
_EXECUTORS: Final = "concurrent.futures._base.Executor concurrent.futures.thread.ThreadPoolExecutor"
CALLS_LATER: Final = (
    _of("contextlib._BaseExitStack contextlib.ExitStack contextlib.AsyncExitStack", "callback")
    | _of(_EXECUTORS, "submit")
    | {PARTIAL, "contextlib.AsyncExitStack.push_async_callback"}
)
"""Functions that bind arguments to a function, which takes them when it is called later."""
MAPS: Final = _of(_EXECUTORS, "map") | {MAP}
"""Functions that call their first argument with one item of each of the others."""
TESTS: Final = _of("itertools", "takewhile dropwhile filterfalse") | {"builtins.filter"}
"""Functions that call their first argument with the items of the second one."""
REDUCES: Final = frozenset({"functools.reduce", "_functools.reduce"})
"""Functions that call their first argument with a result and an item of the second one."""
CALLS_FIRST: Final = MAPS | TESTS | REDUCES
"""Functions that call their first argument with items of others."""
SORTS_SELF: Final = "builtins.list.sort"
ORDERS: Final = (
    _of("builtins", "sorted max min") | _of("heapq", "nlargest nsmallest") | {"itertools.groupby", SORTS_SELF}
)
"""Functions that call their argument `key` with the items of an iterable."""
CALLS_OFTEN: Final = CALLS_FIRST | ORDERS
"""Functions that call a function once for each item."""
REMEMBERS_RESULT: Final = _of("functools", "cache lru_cache cached_property")
"""Decorators of functions that return the same object each time."""
MAKES_MANAGER: Final = _of("contextlib", "contextmanager asynccontextmanager")
"""Decorators that make a context manager of a generator, which gets the arguments as they are."""

_SEQUENCES: Final = "builtins.list collections.deque"
READS_ONLY: Final = (
    _of("builtins", "zip enumerate reversed iter len any all sum")
    | _of(_SEQUENCES, "remove index count")
    | _of("itertools", "chain islice pairwise zip_longest product combinations permutations")
    | _of("weakref", "ref ReferenceType finalize")
    | _all(facts.READS_ONLY)
)
"""Functions that only read their arguments: the handles in an iterable stay with their owner, and the declaration of a
foreign op reads shapes."""

LEAVE_OBJECTS: Final = ("builtins.", "copy.", "dataclasses.", "functools.", "_functools.", "heapq.", "itertools.")
"""The starts of the names of functions that assign no attributes of what they get."""

ARRAY_MAKERS: Final = frozenset(
    {"array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "copy", "asarray_chkfinite", "require"}
)
"""Functions of NumPy that make an array of any object, and ask a handle or an op for contents that it does not give."""
TAKES_MEMORY: Final = "from_dlpack"
"""The function of NumPy that takes the memory of a tensor over."""

_MAPPINGS: Final = "builtins.dict typing.MutableMapping"
ADDS_TO_SELF: Final = (
    _of(f"{_SEQUENCES} typing.MutableSequence", "append extend insert")
    | _of("builtins.list", "__iadd__ __setitem__")
    | _of("collections.deque", "appendleft extendleft")
    | _of(_MAPPINGS, "setdefault update __setitem__")
    | _of("builtins.set", "add update")
    | _of("queue.Queue", "put put_nowait")
    | _of("trio._channel.MemorySendChannel", "send send_nowait")
    | {"typing.MutableSet.add", "trio._abc.SendChannel.send"}
)
"""Methods after which a container or a channel keeps the arguments."""

ADDS_ITEMS_OF: Final = _of(_SEQUENCES, "extend extendleft")
"""Methods after which a container has the items of the argument, too."""
FROM_KEYS: Final = "builtins.dict.fromkeys"
"""The method that makes a dictionary of which all values are one object."""
UPDATES: Final = _of(_MAPPINGS, "update") | {"builtins.dict.__ior__"}
"""Methods after which a dictionary has the values of the argument under the same keys."""

CONTAINERS: Final = _of("builtins", "list tuple set frozenset dict") | {"collections.deque"}
"""Classes whose objects hold the items of the iterable that they are made of."""
_EMPTIED: Final = f"{_SEQUENCES} builtins.dict builtins.set"
COPIES_SELF: Final = _of(_EMPTIED, "copy")
"""Methods that return a new container of the same items."""
COPIES_OBJECT: Final = frozenset({"copy.copy", "copy.replace", "dataclasses.replace"})
"""Functions that return a new object with the attributes of another one."""
REPLACES_SELF: Final = "_replace"
"""The method of a named tuple that returns a new one with the components of the old one."""
TAKES_ITEM: Final = {
    "builtins.list.pop": "[-1]",
    "collections.deque.pop": "[-1]",
    "collections.deque.popleft": "[0]",
}
"""Methods that take an item out of a sequence, each with the step to this item."""
TAKES_VALUE: Final = _of(_MAPPINGS, "pop popitem")
"""Methods that take a value out of a dictionary."""
GIVES_VALUE: Final = _of("builtins.dict typing.Mapping", "get") | _of(_MAPPINGS, "setdefault")
"""Methods that return a value of a dictionary, which stays there."""
GIVES_ITEM: Final = frozenset({"builtins.max", "builtins.min", "builtins.next"})
"""Functions that return one of the items of their argument."""
REORDERS: Final = _of(_SEQUENCES, "reverse") | {"builtins.list.sort", "collections.deque.rotate"}
"""Methods that change the order of a container's items."""
LOOKS_AT_SELF: Final = (
    COPIES_SELF | _of("builtins.dict typing.Mapping", "keys values items") | _of(_SEQUENCES, "index count")
)
"""Methods that leave the items of a container as they are."""
ADDS_BEHIND: Final = _of("builtins.list", "append extend")
"""Methods that add items behind the last one."""
REMOVES: Final = _of(_SEQUENCES, "remove") | _of("collections.deque", "append extend appendleft extendleft")
"""Methods that may take items out. A deque of a maximal length drops one for each that it gets."""

FORGETS_RESULTS: Final = "functools._lru_cache_wrapper.cache_clear"
"""The method of a function that remembers its results which makes it forget them."""

EMPTIES_SELF: Final = _of(f"{_EMPTIED} typing.MutableMapping typing.MutableSequence", "clear")
"""Methods that remove all items from a container."""

SUSPENDED: Final = _of("typing", "Awaitable Coroutine Generator AsyncGenerator Iterator AsyncIterator") | {PARTIAL}
"""Classes of suspended work, begun or not. An instance holds the arguments of the work."""

PLAIN_MODULES: Final = frozenset(
    {
        *("builtins", "typing", "typing_extensions", "collections", "collections.abc", "abc", "enum", "types"),
        *("functools", "itertools", "contextlib", "pathlib", "re", "os", "io", "threading", "logging", "datetime"),
        *("numpy", *map(facts.module_of, facts.PLAIN)),
    }
)
"""Modules whose classes hold handles only through their type arguments. Skipping their attributes only saves time."""

RUNTIME_ERRORS: Final = {
    "NotReadyError": frozenset({"dagpu-not-ready"}),
    "MovedError": frozenset({"dagpu-use-after-move"}),
    "BorrowError": frozenset({"dagpu-conflicting-borrow", "dagpu-borrow-escape"}),
    "OwnershipError": frozenset({"dagpu-use-after-move", "dagpu-conflicting-borrow", "dagpu-borrow-escape"}),
}
"""The run-time errors for a mistake, each with the codes of that mistake. Code that expects one makes it on purpose."""

NURSERY: Final = "trio._core._run.Nursery"
NURSERIES: Final = frozenset({"trio._core._run.NurseryManager"})
"""Context managers that swallow no exception other than their own cancellation."""
