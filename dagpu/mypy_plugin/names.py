"""Full names, as mypy spells them, of the functions and classes that the rules mention. Those of dagpu's come from
`dagpu.common.facts`."""

from collections.abc import Iterable
from typing import Final

from dagpu.common import facts
from dagpu.common.facts import full_name


def _all(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(full_name, names))


TENSOR: Final = full_name("Tensor")
SHARED_TENSOR: Final = full_name("SharedTensor")
TENSOR_REF: Final = full_name("TensorRef")
TENSOR_MUT: Final = full_name("TensorMut")
PARTITION: Final = full_name("Partition")

SHARDED: Final = full_name("Sharded")
SHARDED_REF: Final = full_name("ShardedRef")
PARTIALS: Final = full_name("Partials")

FLOW: Final = full_name("Flow")
FEED: Final = full_name("Feed")
OUTLASTS_FEED: Final = _all(facts.OUTLASTS_FEED)
"""Attributes of a feed that remain after its block."""

DEVICE_OP: Final = full_name("DeviceOp")
STATIC: Final = full_name("Static")
BORROWED: Final = full_name("Borrowed")
NO_ALLOC: Final = full_name("NoAlloc")
KERNEL: Final = full_name("Kernel")
KERNEL_CALL: Final = full_name("Kernel.__call__")
NEW_OUTPUT: Final = full_name("NewOutput")
NEW_OUTPUT_CALL: Final = full_name("NewOutput.__call__")
KERNEL_DECORATOR: Final = full_name("kernel")
SOURCE: Final = full_name("Source")
MAKE_SOURCE: Final = full_name("source")

SLICE: Final = "builtins.slice"
BOOL: Final = "builtins.bool"
ASKS_TRUTH: Final = frozenset(
    {BOOL, *(f"{owner}.{name}" for owner in ("operator", "_operator") for name in ("not_", "truth"))}
)
"""Functions that ask their argument whether it is true."""
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
FOREIGN: Final = full_name("Foreign")
FOREIGN_CALL: Final = full_name("Foreign.__call__")
FOREIGN_FUNCTION_CALL: Final = full_name("ForeignFunction.__call__")
FOREIGN_CALLS: Final = frozenset({FOREIGN_CALL, FOREIGN_FUNCTION_CALL})
"""Calls of foreign ops."""
EXPRESSION_DECORATOR: Final = full_name("expr")
EXPRESSION: Final = full_name("Expression")
EXPRESSION_CALL: Final = full_name("Expression.__call__")
REDUCED_EXPRESSION_CALL: Final = full_name("ReducedExpression.__call__")
EXPRESSION_INTO: Final = full_name("Expression.into")
EXPRESSION_UPDATE: Final = full_name("Expression.update")
EXPRESSION_CALLS: Final = frozenset({EXPRESSION_CALL, REDUCED_EXPRESSION_CALL, EXPRESSION_INTO, EXPRESSION_UPDATE})
"""Calls of functions made by `expr`, and of their reductions."""
ARRAY_FUNCTIONS: Final = full_name("array") + "."
"""The start of the full names of the functions of `dagpu.array`."""
MATMUL: Final = full_name("array.matmul")
INTEROP: Final = full_name("interop")
ADOPT: Final = full_name("adopt")
"""The function that takes an array of another library over from the program."""
PIPELINE: Final = full_name("Pipeline")
PIPELINE_CALL: Final = full_name("Pipeline.__call__")
PIPELINE_DECORATOR: Final = full_name("pipeline")

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
ENDS_WITH_BLOCK: Final = frozenset(
    f"contextlib.{name}" for name in ("_GeneratorContextManager", "_AsyncGeneratorContextManager")
)
"""Context managers made of a generator: what is open in it is closed at the end of the block."""
LENDS_FOR_BLOCK: Final = {full_name(name): exclusive for name, exclusive in facts.LENDS_FOR_BLOCK.items()}
"""Functions that lend an array of another library for a block; True for a loan for writing."""

MAP: Final = "builtins.map"
CALLS_LATER: Final = frozenset(
    {
        PARTIAL,
        *(f"contextlib.{owner}.callback" for owner in ("_BaseExitStack", "ExitStack", "AsyncExitStack")),
        "contextlib.AsyncExitStack.push_async_callback",
        "concurrent.futures._base.Executor.submit",
        "concurrent.futures.thread.ThreadPoolExecutor.submit",
    }
)
"""Functions that bind arguments to a function, which takes them when it is called later."""
MAPS: Final = frozenset(
    {
        MAP,
        "concurrent.futures._base.Executor.map",
        "concurrent.futures.thread.ThreadPoolExecutor.map",
    }
)
"""Functions that call their first argument with one item of each of the others."""
TESTS: Final = frozenset({"builtins.filter", *(f"itertools.{n}" for n in ("takewhile", "dropwhile", "filterfalse"))})
"""Functions that call their first argument with the items of the second one."""
REDUCES: Final = frozenset({"functools.reduce", "_functools.reduce"})
"""Functions that call their first argument with a result and an item of the second one."""
SORTS_SELF: Final = "builtins.list.sort"
ORDERS: Final = frozenset(
    {
        *(f"builtins.{name}" for name in ("sorted", "max", "min")),
        *("itertools.groupby", "heapq.nlargest", "heapq.nsmallest", SORTS_SELF),
    }
)
"""Functions that call their argument `key` with the items of an iterable."""
CALLS_OFTEN: Final = MAPS | TESTS | REDUCES | ORDERS
"""Functions that call a function once for each item."""
REMEMBERS_RESULT: Final = frozenset(f"functools.{name}" for name in ("cache", "lru_cache", "cached_property"))
"""Decorators of functions that return the same object each time."""
MAKES_MANAGER: Final = frozenset({"contextlib.contextmanager", "contextlib.asynccontextmanager"})
"""Decorators that make a context manager of a generator, which gets the arguments as they are."""

READS_ONLY: Final = frozenset(
    {
        *(f"builtins.{name}" for name in ("zip", "enumerate", "reversed", "iter", "len", "any", "all", "sum")),
        *(
            f"{owner}.{name}"
            for owner in ("builtins.list", "collections.deque")
            for name in ("remove", "index", "count")
        ),
        *(
            f"itertools.{name}"
            for name in ("chain", "islice", "pairwise", "zip_longest", "product", "combinations", "permutations")
        ),
        *("weakref.ref", "weakref.ReferenceType", "weakref.finalize"),
        *map(full_name, facts.READS_ONLY),
    }
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

ADDS_TO_SELF: Final = frozenset(
    {
        *(f"builtins.list.{name}" for name in ("append", "extend", "insert", "__iadd__", "__setitem__")),
        *(f"builtins.set.{name}" for name in ("add", "update")),
        *(f"builtins.dict.{name}" for name in ("setdefault", "update", "__setitem__")),
        *(f"typing.MutableMapping.{name}" for name in ("setdefault", "update", "__setitem__")),
        *(f"typing.MutableSequence.{name}" for name in ("append", "extend", "insert")),
        *(f"typing.MutableSet.{name}" for name in ("add",)),
        *(f"collections.deque.{name}" for name in ("append", "appendleft", "extend", "extendleft", "insert")),
        *(f"queue.Queue.{name}" for name in ("put", "put_nowait")),
        *(f"trio._channel.MemorySendChannel.{name}" for name in ("send", "send_nowait")),
        "trio._abc.SendChannel.send",
    }
)
"""Methods after which a container or a channel keeps the arguments."""

ADDS_ITEMS_OF: Final = frozenset(
    f"{owner}.{name}" for owner in ("builtins.list", "collections.deque") for name in ("extend", "extendleft")
)
"""Methods after which a container has the items of the argument, too."""
FROM_KEYS: Final = "builtins.dict.fromkeys"
"""The method that makes a dictionary of which all values are one object."""
UPDATES: Final = frozenset({"builtins.dict.update", "typing.MutableMapping.update", "builtins.dict.__ior__"})
"""Methods after which a dictionary has the values of the argument under the same keys."""

CONTAINERS: Final = frozenset(
    {*(f"builtins.{name}" for name in ("list", "tuple", "set", "frozenset", "dict")), "collections.deque"}
)
"""Classes whose objects hold the items of the iterable that they are made of."""
COPIES_SELF: Final = frozenset(
    {"builtins.list.copy", "builtins.dict.copy", "builtins.set.copy", "collections.deque.copy"}
)
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
TAKES_VALUE: Final = frozenset(
    f"{owner}.{name}" for owner in ("builtins.dict", "typing.MutableMapping") for name in ("pop", "popitem")
)
"""Methods that take a value out of a dictionary."""
GIVES_VALUE: Final = frozenset(
    {"builtins.dict.get", "typing.Mapping.get", "builtins.dict.setdefault", "typing.MutableMapping.setdefault"}
)
"""Methods that return a value of a dictionary, which stays there."""
GIVES_ITEM: Final = frozenset({"builtins.max", "builtins.min", "builtins.next"})
"""Functions that return one of the items of their argument."""
REORDERS: Final = frozenset(
    {"builtins.list.sort", "builtins.list.reverse", "collections.deque.rotate", "collections.deque.reverse"}
)
"""Methods that change the order of a container's items."""
LOOKS_AT_SELF: Final = COPIES_SELF | frozenset(
    {
        *(f"builtins.dict.{name}" for name in ("keys", "values", "items")),
        *(f"typing.Mapping.{name}" for name in ("keys", "values", "items")),
        *(f"builtins.list.{name}" for name in ("index", "count")),
        *(f"collections.deque.{name}" for name in ("index", "count")),
    }
)
"""Methods that leave the items of a container as they are."""
REMOVES: Final = frozenset({"builtins.list.remove", "collections.deque.remove"})
"""Methods that remove an item at an unknown index."""

FORGETS_RESULTS: Final = "functools._lru_cache_wrapper.cache_clear"
"""The method of a function that remembers its results which makes it forget them."""

EMPTIES_SELF: Final = frozenset(
    {"builtins.list.clear", "builtins.dict.clear", "builtins.set.clear", "collections.deque.clear"}
) | {"typing.MutableMapping.clear", "typing.MutableSequence.clear"}
"""Methods that remove all items from a container."""

SUSPENDED: Final = frozenset(
    {
        PARTIAL,
        "typing.Awaitable",
        "typing.Coroutine",
        "typing.Generator",
        "typing.AsyncGenerator",
        "typing.Iterator",
        "typing.AsyncIterator",
    }
)
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
