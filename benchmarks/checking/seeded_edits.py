"""The mistakes that `seeded_mistakes` makes: each kind finds its places in a function, and edits a copy of it there."""

import ast
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

HELPERS: Final = """
import collections as _collections
import contextlib as _contextlib
import dataclasses as _dataclasses
import typing as _typing
import numpy as _np
import trio as _trio
import dagpu as _dagpu
_T = _typing.TypeVar("_T")
@_dataclasses.dataclass
class _Box(_typing.Generic[_T]):
    item: _T
@_dataclasses.dataclass
class _Own:
    item: _dagpu.Tensor[_dagpu.f32]
    def get(self) -> _dagpu.Tensor[_dagpu.f32]:
        return self.item
    def lend(self) -> _dagpu.TensorRef[_dagpu.f32]:
        return self.item.borrow()
    def drain(self) -> None:
        _spend(self.item)
def _spend(t: "_dagpu.Tensor[_typing.Any]") -> None:
    t.share()
def _spent(t: "_dagpu.Tensor[_typing.Any]") -> bool:
    return bool(t.share().shape)
_D = _typing.TypeVar("_D", bound=_np.generic)
def _look(t: "_dagpu.TensorRef[_typing.Any]") -> None:
    print(t.shape)
@_contextlib.contextmanager
def _lent(t: "_dagpu.Tensor[_D]") -> "_typing.Iterator[_dagpu.TensorRef[_D]]":
    yield t.borrow()
@_contextlib.contextmanager
def _held(t: "_dagpu.Tensor[_D]") -> _typing.Iterator[None]:
    t.share()
    yield
"""
"""Appended to each module. `_spend`, `_spent` and `_held` take a tensor by value, and `_lent` lends it."""

INSERTED: Final = (
    *("_spend(", "_spent(", "_n.start_soon", ".borrow_mut()", "_r = ", "_look(", "_box", "_g = ", "_other"),
    *("_several = ", "_own = "),
)
"""Texts of the inserted lines, which mypy must accept without the plugin.

A line that passes a function on is none of them: mypy infers `Any` for a function on the way to its type.
"""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Place: TypeAlias = tuple[list[ast.stmt], int]
"""A block, and the index of a statement in it."""
Edit: TypeAlias = Callable[[Function], None]
"""Makes a mistake in a copy of a function."""
Finder: TypeAlias = Callable[[Function], Iterator[Edit]]
"""Iterates over the mistakes of one kind that can be made in a function."""


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Iterate over the suites of a function, without those of functions and classes in it."""
    for name in ("body", "orelse", "finalbody"):
        suite = getattr(node, name, None)
        if isinstance(suite, list) and suite and isinstance(suite[0], ast.stmt):
            yield suite
            for statement in suite:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from blocks(statement)
    for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield from blocks(handler)


def places(function: Function) -> list[Place]:
    """Return the places of all statements, in an order that a copy of the function has as well."""
    return [(suite, index) for suite in blocks(function) for index in range(len(suite))]


def loads(node: ast.AST) -> list[str]:
    """Return the variables that a statement certainly reads: not those in closures and in nested statements."""
    if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    found = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            found += loads(child)
    return found


def written(text: str) -> ast.stmt:
    """Return the statement of this text."""
    return ast.parse(text).body[0]


def before(number: int, *texts: str) -> Edit:
    """Insert statements before the statement of this number."""

    def edit(function: Function) -> None:
        suite, index = places(function)[number]
        suite[index:index] = map(written, texts)

    return edit


def after(number: int, *texts: str) -> Edit:
    """Insert statements behind the statement of this number, and let the function return anything."""

    def edit(function: Function) -> None:
        suite, index = places(function)[number]
        suite[index + 1 : index + 1] = map(written, texts)
        if any(isinstance(written(text), ast.Return) for text in texts):
            function.returns = ast.Name("object", ast.Load())

    return edit


def moved_again(function: Function) -> Iterator[Edit]:
    """A tensor is moved before a statement that uses it."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    owned = {one.arg for one in arguments if one.annotation and ast.unparse(one.annotation).startswith("Tensor[")}
    for suite, index in places(function):
        match suite[index]:
            case ast.Assign(targets=[target], value=value) if not any(
                word in ast.unparse(value) for word in ("np.", ".shape")
            ):
                owned |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
            case _:
                pass
    for number, (suite, index) in enumerate(places(function)):
        if isinstance(suite[index], ast.Expr | ast.Assign | ast.Return | ast.AnnAssign | ast.For | ast.If | ast.With):
            for name in sorted(owned & set(loads(suite[index]))):
                yield before(number, f"_spend({name})")


def assigned(statement: ast.stmt) -> str:
    """Return the variable to which a statement assigns the result of a call; an empty string if it is another one."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() | ast.Await()):
            return name
        case _:
            return ""


def borrow_returned(function: Function) -> Iterator[Edit]:
    """A function returns a borrow of a tensor that it has just made."""
    generates = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    for number, (suite, index) in enumerate(places(function)):
        name = assigned(suite[index])
        if name and not generates:
            yield after(number, f"return {name}.borrow_mut()")


def read_while_written(function: Function) -> Iterator[Edit]:
    """A borrow for reading is used after one for writing."""
    for number, (suite, index) in enumerate(places(function)):
        if name := assigned(suite[index]):
            yield after(number, f"_r = {name}.borrow()", f"_w = {name}.borrow_mut()", "_look(_r)", "print(_w.shape)")


def moved_while_lent(function: Function) -> Iterator[Edit]:
    """A tensor moves while a borrow of it is used later."""
    for number, (suite, index) in enumerate(places(function)):
        if name := assigned(suite[index]):
            yield after(number, f"_r = {name}.borrow()", f"_spend({name})", "_look(_r)")


def partition_dropped(function: Function) -> Iterator[Edit]:
    """An output is passed to a kernel whole."""
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Call) and node.args and _is_partition(node.args[0]):

            def edit(other: Function, number: int = number) -> None:
                call = list(ast.walk(other))[number]
                assert isinstance(call, ast.Call)
                inner = call.args[0]
                assert isinstance(inner, ast.Call)
                assert isinstance(inner.func, ast.Attribute)
                call.args[0] = inner.func.value

            yield edit


def _is_partition(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "partition"


def op_dropped(function: Function) -> Iterator[Edit]:
    """A statement builds an op and does not run it."""
    for number, (suite, index) in enumerate(places(function)):
        statement = suite[index]
        if isinstance(statement, ast.Expr) and _run(statement.value) is not None:

            def edit(other: Function, number: int = number) -> None:
                inside, at = places(other)[number]
                run = inside[at]
                assert isinstance(run, ast.Expr)
                run.value = _run(run.value) or run.value

            yield edit


def _run(e: ast.expr) -> ast.expr | None:
    """Return the op that an expression runs."""
    match e:
        case ast.Await(value=ast.Call() as op):
            return op
        case ast.Call(func=ast.Attribute(value=ast.Call() as op, attr="sync"), args=[]):
            return op
        case _:
            return None


def op_overwritten(function: Function) -> Iterator[Edit]:
    """An op is built twice for one variable, which is run later."""
    run = {
        node.value.id
        for node in ast.walk(function)
        if (isinstance(node, ast.Await) or (isinstance(node, ast.Attribute) and node.attr == "sync"))
        and isinstance(node.value, ast.Name)
    }
    for number, (suite, index) in enumerate(places(function)):
        statement = suite[index]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        name, called = assigned(statement), statement.value.func
        starts = isinstance(called, ast.Name) and called.id == "spawn"  # a task is not an op
        if name in run and name not in loads(statement) and not starts:
            yield after(number, ast.unparse(statement))


def used_twice(function: Function) -> Iterator[Edit]:
    """An op that was assigned takes two places of one op."""
    several = ("shared(", "value(", "source(", "cutoff(", "unzip(")  # these may be used several times
    run = {
        assigned(suite[index])
        for suite, index in places(function)
        if assigned(suite[index]) and not any(word in ast.unparse(suite[index]) for word in several)
    }
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip_ops":
            for at, argument in enumerate(node.args):
                if isinstance(argument, ast.Name) and argument.id in run:

                    def edit(other: Function, number: int = number, at: int = at) -> None:
                        call = list(ast.walk(other))[number]
                        assert isinstance(call, ast.Call)
                        call.args.append(call.args[at])

                    yield edit


def await_dropped(function: Function) -> Iterator[Edit]:
    """A variable gets an op or a coroutine in place of its result, and is used as the result."""
    for number, (suite, index) in enumerate(places(function)):
        match suite[index]:
            case ast.Assign(targets=[ast.Name()], value=ast.Await()):

                def edit(other: Function, number: int = number) -> None:
                    inside, at = places(other)[number]
                    changed = inside[at]
                    assert isinstance(changed, ast.Assign)
                    assert isinstance(changed.value, ast.Await)
                    changed.value = changed.value.value
                    inside.insert(at + 1, written(f"print({ast.unparse(changed.targets[0])}.shape)"))

                yield edit
            case _:
                pass


def borrow_dropped(function: Function) -> Iterator[Edit]:
    """A call gets a tensor in place of a borrow of it, and a later statement reads the tensor."""
    for number, (suite, index) in enumerate(places(function)):
        statement = suite[index]
        if not isinstance(statement, ast.Expr | ast.Assign):
            continue
        set_here = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _is_set(node)}
        later = {name for other in suite[index + 1 : index + 2] for name in loads(other)} - set_here
        for inner, call in enumerate(ast.walk(statement)):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) in ("print", "repr", "len", "isinstance"):
                continue
            for at, argument in enumerate(call.args):
                if _lent(argument) in later:

                    def edit(other: Function, number: int = number, inner: int = inner, at: int = at) -> None:
                        inside, place = places(other)[number]
                        changed = list(ast.walk(inside[place]))[inner]
                        assert isinstance(changed, ast.Call)
                        changed.args[at] = ast.Name(_lent(changed.args[at]), ast.Load())

                    yield edit


def _is_set(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _lent(e: ast.expr) -> str:
    """Return the variable that an expression borrows for reading; an empty string if it is another expression."""
    match e:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="borrow"), args=[]):
            return name
        case _:
            return ""


# ---- statements that follow the assignment of a tensor
_READ: Final = "print({name}.shape)"
_FIRST: Final = "print(_several[0].shape)"
_IS_TENSOR: Final = "_look({name}.borrow())"
"""A statement that mypy accepts for a tensor alone."""
FOLLOWING: Final = {
    "a dict keeps a borrow": ('_kept = {{"r": {name}.borrow()}}', "_spend({name})", '_look(_kept["r"])'),
    "a closure keeps a borrow": (
        "_r = {name}.borrow()",
        "def _look_later() -> None:\n    _look(_r)",
        "_spend({name})",
        "_look_later()",
    ),
    "a default keeps a borrow": (
        "_r = {name}.borrow()",
        "def _look_later(number: int = len(_r.shape)) -> None:\n    _look(_r)",
        "_spend({name})",
        "_look_later()",
    ),
    "a generator keeps a borrow": (
        "_r = {name}.borrow()",
        "_g = (_r.shape for _ in range(2))",
        "_spend({name})",
        "print(list(_g))",
    ),
    "a data class keeps a borrow": ("_box = _Box({name}.borrow())", "_spend({name})", "_look(_box.item)"),
    "a data class keeps a moved tensor": ("_box = _Box({name})", "_spend(_box.item)", "print(_box.item.shape)"),
    "a move into a data class": ("_box = _Box({name})", "_spend(_box.item)", _READ),
    "a move in a loop": ("for _ in range(2):\n    _spend({name})",),
    "a move in a handler": ("try:\n    print()\nexcept ValueError:\n    _spend({name})", _READ),
    "a move in finally": ("try:\n    print()\nfinally:\n    _spend({name})", _READ),
    "a move before a handler": ("try:\n    _spend({name})\n    print()\nexcept ValueError:\n    print({name}.shape)",),
    "a move in a case": ("match len('a'):\n    case 1:\n        _spend({name})\n    case _:\n        pass", _READ),
    "a move in a comprehension's condition": ("print([_i for _i in range(3) if _spent({name})])",),
    "a move in a generator": ("print(list(_spent({name}) for _ in range(2)))",),
    "a move by a walrus": ("_spend((_other := {name}))", _READ),
    "a move in a condition": ("if len('a') and _spent({name}):\n    pass", _READ),
    "a move of one of two": ("_other = {name} if len('a') else {name}", "_spend(_other)", _READ),
    "a move by a starred argument": ("_spend(*({name},))", _READ),
    "a move by a keyword": ("_spend(t={name})", _READ),
    "a move into a list": ("_other = [{name}]", "_spend(_other[0])", "print(_other[-1].shape)"),
    "a move at a variable index": (
        "_other = [{name}]",
        "_at = len(_other) - 1",
        "_spend(_other[_at])",
        "_spend(_other[_at])",
    ),
    "a move of a tuple's component": (
        "_other = ({name}, 1)",
        "_spend(_other[0])",
        "_again, _ = _other",
        "print(_again.shape)",
    ),
    "a move by a closure": ("def _take() -> None:\n    _spend({name})", "_take()", _READ),
    "a move by a closure that assigns": (
        "def _take() -> None:\n    nonlocal {name}\n    _spend({name})",
        "_take()",
        _READ,
    ),
    "a move by a lambda": (
        _IS_TENSOR,
        "_took: _typing.Callable[[int], bool] = lambda _i: _spent({name})",
        "print(list(map(_took, [0])))",
        _READ,
    ),
    "a move by a function that is mapped": (
        _IS_TENSOR,
        "_several = [{name}]",
        "print(list(map(_spent, _several)))",
        _FIRST,
    ),
    "a move out of a copy": ("_several = [{name}]", "_copied = list(_several)", "_spend(_copied[0])", _FIRST),
    "a move out of a whole slice": ("_several = [{name}]", "for _t in _several[:]:\n    _spend(_t)", _FIRST),
    "a move out of a sorted copy": (
        "_several = [{name}]",
        "for _t in sorted(_several, key=id):\n    _spend(_t)",
        _FIRST,
    ),
    "a move out of a comprehension": (
        "_several = [{name}]",
        "_copied = [_t for _t in _several]",
        "_spend(_copied[-1])",
        _FIRST,
    ),
    "a tensor is popped from a copy": (
        "_several = [{name}]",
        "_copied = _several.copy()",
        "while _copied:\n    _spend(_copied.pop())",
        _FIRST,
    ),
    "a tensor is popped from a dict's copy": (
        "_several = {{'t': {name}}}",
        "_copied = dict(_several)",
        "_spend(_copied.pop('t'))",
        "print(_several['t'].shape)",
    ),
    "a tensor is taken out of a queue": (
        "_several = [{name}]",
        "_queue = _collections.deque(_several)",
        "_spend(_queue.popleft())",
        _FIRST,
    ),
    "a context manager lends a tensor that moves": ("with _lent({name}) as _r:\n    _spend({name})\n    _look(_r)",),
    "a context manager takes a tensor": (_IS_TENSOR, "with _held({name}):\n    pass", _READ),
    "a method drains an object twice": ("_own = _Own({name})", "_own.drain()", "_own.drain()"),
    "a method gives an attribute": ("_own = _Own({name})", "_spend(_own.get())", "print(_own.item.shape)"),
    "a method lends an attribute that moves": (
        "_own = _Own({name})",
        "_r = _own.lend()",
        "_own.drain()",
        "_look(_r)",
    ),
    "an object is copied": (
        "_own = _Own({name})",
        "_copied = _dataclasses.replace(_own)",
        "_copied.drain()",
        "print(_own.item.shape)",
    ),
    "a move in a with block": ("with _contextlib.nullcontext():\n    _spend({name})", _READ),
}
"""Statements that are inserted behind an assignment of a tensor."""
FOLLOWING_AWAIT: Final = {
    "an asynchronous generator keeps a borrow": (
        "_r = {name}.borrow()",
        "async def _shapes() -> _typing.AsyncIterator[tuple[int, ...]]:\n    yield _r.shape",
        "_g = _shapes()",
        "_spend({name})",
        "async for _shape in _g:\n    print(_shape)",
    ),
    "a task moves a tensor twice": (
        "async def _task(_other: '_dagpu.Tensor[_dagpu.f32]') -> None:\n    _spend(_other)",
        "async with _trio.open_nursery() as _n:\n    for _ in range(2):\n        _n.start_soon(_task, {name})",
    ),
}
"""Statements that are inserted in asynchronous functions only."""


def following(texts: tuple[str, ...], *, asynchronous: bool = False) -> Finder:
    """Return the finder of a mistake that these statements make, with the name of the assigned variable put in."""

    def find(function: Function) -> Iterator[Edit]:
        if asynchronous and not isinstance(function, ast.AsyncFunctionDef):
            return
        for number, (suite, index) in enumerate(places(function)):
            if (name := assigned(suite[index])) and "np." not in ast.unparse(suite[index]):
                yield after(number, *(text.format(name=name) for text in texts))

    return find


PLUGIN_ALONE: Final[dict[str, Finder]] = {
    "a moved tensor is used": moved_again,
    "a borrow is returned": borrow_returned,
    "a tensor is written while it is read": read_while_written,
    "a tensor moves while it is lent": moved_while_lent,
    "an op is overwritten": op_overwritten,
    "an op is used twice in a run": used_twice,
    **{kind: following(texts) for kind, texts in FOLLOWING.items()},
    **{kind: following(texts, asynchronous=True) for kind, texts in FOLLOWING_AWAIT.items()},
}
"""Mistakes that mypy does not see without the plugin. If it refuses one, the variable is no tensor."""
EITHER: Final[dict[str, Finder]] = {
    "a partition is dropped": partition_dropped,
    "an op is dropped": op_dropped,
    "an await is dropped": await_dropped,
    "a borrow is dropped": borrow_dropped,
}
"""Mistakes that mypy may find by itself."""
KINDS: Final = PLUGIN_ALONE | EITHER
