"""The error codes and their messages.

A message has the words of the run-time error: the mistake, the line of the move or borrow, and the cure. Creating a
code registers it with mypy, for `type: ignore[...]` and for per-module settings. The codes have no common parent: with
one, `mypy --strict` would ask for the narrower code in every ignore of the parent.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from mypy.errorcodes import ErrorCode
from mypy.nodes import Context
from mypy.types import Instance, Type, UnionType, get_proper_type

from dagpu.mypy_plugin import names

NOT_READY: Final = ErrorCode("dagpu-not-ready", "A handle or an op is read as if it were an array of the host", "dagpu")
USE_AFTER_MOVE: Final = ErrorCode("dagpu-use-after-move", "A handle is used after it may have been moved", "dagpu")
CONFLICTING_BORROW: Final = ErrorCode("dagpu-conflicting-borrow", "A borrow conflicts with one that is alive", "dagpu")
BORROW_ESCAPE: Final = ErrorCode("dagpu-borrow-escape", "A borrow outlives the tensor it was lent from", "dagpu")
FEED_ESCAPE: Final = ErrorCode("dagpu-feed-escape", "A feed outlives the block in which its flow is open", "dagpu")
OUTPUT_PARTITION: Final = ErrorCode("dagpu-output-partition", "A kernel's output is not a fitting partition", "dagpu")
INPUT_RANK: Final = ErrorCode("dagpu-input-rank", "A kernel's input has another rank than CUDA declares", "dagpu")
UNUSED_OP: Final = ErrorCode("dagpu-unused-op", "An op or a flow is built and never run", "dagpu")
SEES: Final = ErrorCode("dagpu-sees", "What a kernel declares to see does not fit its parameters", "dagpu")
SOURCE_PART: Final = ErrorCode("dagpu-source-part", "A part that is written does not lie in its source", "dagpu")
SOURCE_VALUE: Final = ErrorCode("dagpu-source-value", "A source is to hold a tuple with a handle in it", "dagpu")
GRAPH_NODE: Final = ErrorCode("dagpu-graph-node", "An op that cannot be recorded into a CUDA graph", "dagpu")


class Finding(NamedTuple):
    """One error: its code, its message and the node where it is reported."""

    node: Context
    code: ErrorCode
    message: str
    unless: ErrorCode | None = None
    """The code of a more exact finding, with which this one is not reported for the same line."""

    @property
    def order(self) -> tuple[int, int]:
        return self.node.line, self.node.column


LOAN: Final = 1
"""A parameter accepts what is lent for reading."""
SHARES: Final = 2
"""A parameter accepts a shared tensor."""
ANY_FORM: Final = LOAN | SHARES


def _format_lines(nodes: Iterable[Context]) -> str:
    lines = [str(line) for line in sorted({node.line for node in nodes})]
    if len(lines) == 1:
        return f"line {lines[0]}"
    return f"lines {', '.join(lines[:-1])} and {lines[-1]}"


def _format_rounds(sites: Iterable[Context], again: bool) -> str:
    """`again`: by the same line, in an earlier round of a loop."""
    return "in an earlier round of the loop" if again else f"on {_format_lines(sites)}"


def _class_name(t: Type | None) -> str:
    """Return the full name of a handle's class, or of the first class in a union; empty for other types."""
    proper = get_proper_type(t) if t is not None else None
    if isinstance(proper, UnionType):
        return next((name for name in map(_class_name, proper.items) if name), "")
    return proper.type.fullname if isinstance(proper, Instance) else ""


def used_after_move(
    name: str, handle: Type | None, hows: Iterable[str], sites: Iterable[Context], again: bool, accepts: int = ANY_FORM
) -> str:
    """Message: a handle is used that may have been moved. `again`: by the same line, in an earlier round of a loop.
    `accepts`: what else could have been passed there, so that the cure type-checks."""
    how = " or ".join(sorted(set(hows)))
    where = _format_rounds(sites, again)
    cure = _cure(handle, how, accepts)
    return f'"{name}" may have been moved by {how} {where} and is used again. To use it twice: {cure}.'


def _cure(handle: Type | None, how: str, accepts: int) -> str:
    cure = "use what the move gave back"
    if how == "adopt()":  # an array of another library
        return f"{cure}, copy it with from_array(x), or share it with share_array(x)"
    match _class_name(handle):
        case names.TENSOR_MUT:
            return cure + ", or lend the tensor again with .borrow_mut()"
        case names.SHARED_TENSOR:
            return cure + ", or share that again with .share()"
        case names.PARTITION | names.PARTIALS:
            return cure
        case names.SHARDED:
            return cure + ", or lend it with .borrow()" if accepts & LOAN else cure
        case _ if how.startswith("partition"):
            return (
                f"{cure}, lend it for writing: .borrow_mut().partition(tile), or write to memory of its own, "
                "empty(shape).partition(tile), and read this"
            )
        case _ if not accepts:
            return f"{cure}, pass a copy, dup(x.borrow()).sync(), or let the parameter be a TensorRef: .borrow()"
        case _ if accepts == LOAN:
            return cure + ", or lend it with .borrow()"
        case _ if accepts == SHARES:
            return cure + ", or share it with .share()"
        case _:
            return cure + ", lend it with .borrow(), or share it with .share()"


def run_twice(sites: Iterable[Context], again: bool) -> str:
    """Message: an op that owned handles have moved into is run again."""
    where = _format_rounds(sites, again)
    return (
        f"this op was run {where}, and used up what had been moved into it. "
        "Build it again for each run, or remember its result with .shared()."
    )


def called_twice(sites: Iterable[Context], again: bool) -> str:
    """Message: a function is called again that takes a handle which has been bound to it."""
    where = _format_rounds(sites, again)
    return (
        f"this function was called {where}, and took the handle that is bound to it. "
        "Pass the handle at the call, or bind a shared tensor, which may be passed again: t.share()."
    )


def used_twice(built: Context) -> str:
    """Message: an op is used in two places of one op, whose run needs its result twice."""
    return (
        f"the op built on line {built.line} is used twice in one run. Its result has one owner: "
        "say .shared() to give it to several, or build the op once for each use."
    )


def conflicting_borrow(name: str, exclusive: bool, loan: Context, held_exclusively: bool, captured: bool) -> str:
    """Message: a tensor is borrowed while a conflicting loan of it is alive."""
    what = "for writing" if exclusive else "for reading"
    how = "captured by a closure or a task" if captured else f"lent for {'writing' if held_exclusively else 'reading'}"
    return (
        f'"{name}" is borrowed {what} while it is {how} on line {loan.line}, and that is used later. '
        "Drop the first borrow before the second; or lend it once, for writing: a kernel takes that as an input "
        "too, and gives it back; or write to a copy that was made before, dup(t.borrow()).sync()."
    )


def moved_while_lent(name: str, how: str, loan: Context, captured: bool) -> str:
    """Message: a tensor is moved while a loan of it is alive."""
    lent = "captured by a closure or a task" if captured else "lent"
    return (
        f'"{name}" is moved by {how} while it is {lent} on line {loan.line}, and that is used later. '
        "Use the borrow before the tensor moves, or share() the tensor."
    )


def escapes(name: str, how: str, loan: Context) -> str:
    """Message: a value that borrows a local tensor is passed to a location that outlives the tensor."""
    return (
        f'a value that borrows "{name}" (on line {loan.line}) is {how} the function that owns it. '
        "share() the tensor and pass that on, or hand the tensor itself over."
    )


_LOAN_CURE = "Use it inside the block, or copy it there: dup(r).sync()"


def loan_escapes(exclusive: bool, how: str, loan: Context) -> str:
    """Message: an array that is lent for a block is passed to a location that outlives the block."""
    return f"what {_lender(exclusive)} lends on line {loan.line} is {how} its block. {_LOAN_CURE}."


def used_after_loan(exclusive: bool, loan: Context) -> str:
    """Message: an array that was lent for a block is used after it."""
    return f"what {_lender(exclusive)} lends on line {loan.line} is used after its block. {_LOAN_CURE}."


def _lender(exclusive: bool) -> str:
    return "lend_mut()" if exclusive else "lend()"


_FEED_CURE = "Ask it inside the block and pass its values on, or pass the flow on and open that again"


def feed_escapes(name: str, how: str, opened: Context) -> str:
    """Message: a feed is passed to a location that outlives its block."""
    return f'the feed "{name}", opened on line {opened.line}, is {how} its block. {_FEED_CURE}.'


def feed_after_block(holder: str, name: str, opened: Context) -> str:
    """Message: a feed, or a value that holds one, is used after the feed's block."""
    if holder == name:
        return f'the feed "{name}", opened on line {opened.line}, is asked after its block. {_FEED_CURE}.'
    return (
        f'"{holder}" holds the feed "{name}", opened on line {opened.line}, and may ask it after its block. '
        f"{_FEED_CURE}; open a nursery whose tasks ask the feed inside the block."
    )


def read_on_host(is_op: bool) -> str:
    """Message: NumPy is asked to make an array of a handle or of an op."""
    what = "this op" if is_op else "this handle"
    cure = "Run it and copy the result to the host: op.to_host().sync()" if is_op else "Get them with .to_host().sync()"
    return f"NumPy cannot read {what}: it never reveals its contents by itself; they are on the device. {cure}."


def taken_as_condition(is_op: bool) -> str:
    """Message: a handle or an op is asked whether it is true."""
    if is_op:
        return (
            "this op is a description, neither true nor false. Run it, and test its result: op.sync(); or ask whether "
            "there is one: op is not None."
        )
    return (
        "a handle is neither true nor false: its contents are on the device. Ask whether there is one: x is not None; "
        "or get the contents with .to_host().sync()."
    )


def unused(is_op: bool) -> str:
    """Message: an op or a flow is built and dropped."""
    if is_op:
        return "this op is built and never run. Run it with await op, op.sync() or spawn(nursery, op), or leave it out."
    return (
        "this flow is built and never opened. Open it with async with flow as feed, "
        "send its values to a source with await flow.into(source), or leave it out."
    )


def two_element_types(one: str, other: str) -> str:
    """Message: the operands of a product have two element types."""
    return f"the operands of a product have the element types {one} and {other}. Convert one: convert(t, {one})."


def held_in_source(handle: str, *, lent: bool) -> str:
    """Message: a tuple that a source is to hold has a handle in it."""
    if lent:
        return (
            f"a source is given a tuple that holds a {handle}, and may keep it for longer than the loan. Make a source "
            "of each: of a copy, dup(t), or of the tensor itself."
        )
    return (
        f"a source is given a tuple that holds a {handle}: a source holds one tensor, or host values. Make a source of "
        "each."
    )


def crashed(error: Exception) -> str:
    """Message: the plugin has failed with an internal error."""
    return (
        f"dagpu's mypy plugin failed here and checks nothing in this module ({type(error).__name__}: {error}). "
        "This is a defect of the plugin: please report it, with the module and what mypy --show-traceback prints."
    )


def may_allocate() -> str:
    """Message: an op that allocates is recorded into a CUDA graph."""
    return (
        "this op may allocate device memory, and cannot be recorded into a CUDA graph. Allocate before the capture, "
        "and record ops that write to what is there: a kernel on t.borrow_mut().partition(tile), memcpy or fill."
    )
