"""Evaluates operands in their order, and lowers what operators and calls do to objects, containers and their parts."""

from collections.abc import Iterable, Mapping, Sequence

from mypy.nodes import (
    CallExpr,
    Context,
    Decorator,
    Expression,
    FuncDef,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    SetComprehension,
    SetExpr,
    StrExpr,
    TupleExpr,
    Var,
)
from mypy.operators import op_methods, reverse_op_methods
from mypy.types import CallableType, Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.callees import Callee, effect_in, function_of, method_of, picks_item, remembers
from dagpu.mypy_plugin.analysis.containers import element_of, items_of_value
from dagpu.mypy_plugin.analysis.graph import (
    ANY_GLOBAL,
    ANY_ITEM,
    EVERYTHING,
    ONE_ITEM,
    Change,
    Forget,
    Lend,
    Move,
    Path,
    Place,
    Read,
    Rearrange,
    Share,
    Slot,
    Store,
)
from dagpu.mypy_plugin.analysis.module_facts import Effect, Part
from dagpu.mypy_plugin.analysis.origins import Choice, Known, Relation, share_place
from dagpu.mypy_plugin.analysis.places import BINDS, has_stable_items, is_own_object, item_place, item_step, place_of
from dagpu.mypy_plugin.messages import ANY_FORM
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP

# ---- operands


class Operands:
    """Evaluates operands in order, and moves the handles among them after all operands have been evaluated.

    This is the order at run time: `f(t, t.shape)` reads the shape first, and then the call of `f` moves `t`.
    """

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._moves: list[Move] = []
        self.keeps = False
        """True if the call only gives the handles another owner: it makes an object, or fills a container."""
        self.accepts = ANY_FORM
        """What the parameter of the next operand accepts; see `Move.accepts`."""
        self.owns = False
        """True if one of the operands is an owned handle that moves."""

    def evaluate(self, e: Expression, by_value: bool, *, always: bool = False) -> Slot | None:
        """Evaluate the next operand. `always`: move it even if its type is not one that moves when passed on."""
        b = self._b
        if not by_value or not (always or b.kind(e) & MOVES):
            return b.evaluate(e, by_value)
        self.owns = True
        named = isinstance(e, NameExpr | MemberExpr | IndexExpr) and e not in b.taken  # a result is evaluated again
        place = place_of(b, e) if named else None
        binds = self.keeps or b.how.startswith(BINDS)
        if place is None:
            return self._evaluate_result(e)
        if place.path:
            b.read(e.base if isinstance(e, IndexExpr) else e.expr if isinstance(e, MemberExpr) else e)
        into = b.temporary()
        self._moves.append(Move(e, place, into, b.how, binds=binds, accepts=self.accepts))
        return into

    def _evaluate_result(self, e: Expression) -> Slot | None:
        """Evaluate a call or an operator. If its result had a place before, the handle moves out of that one, too."""
        b = self._b
        binds = self.keeps or b.how.startswith(BINDS)
        how = b.how
        held = b.value(e)
        if (place := b.taken.get(e)) is not None:
            self._moves.append(Move(e, place, b.temporary(), how, binds=binds, accepts=self.accepts))
        return held

    def move_items(self, e: Expression) -> None:
        """Move the items of a container that a call takes one by one: `f(*pair)`, `f(**tensors)`, `map(f, [t])`."""
        b = self._b
        if isinstance(e, ListExpr | TupleExpr):
            for single in e.items:
                if b.kind(single) & MOVES and (named := place_of(b, single)) is not None:
                    self._moves.append(Move(single, named, b.temporary(), b.how))
            return
        place, t = place_of(b, e), get_proper_type(b.types.get(e))
        if place is None:
            return
        steps: list[str] = []
        if isinstance(t, TupleType):
            steps = [item_step(t, i) for i, item in enumerate(t.items) if b.kinds.kind_of(item) & MOVES]
        elif isinstance(t, Instance) and t.args and b.kinds.kind_of(t.args[-1]) & MOVES and has_stable_items(b, e):
            steps = [ANY_ITEM]
        for step in steps:
            if (item := place.inside((step,))) is not None:
                self._moves.append(Move(e, item, b.temporary(), b.how, binds=self.keeps))

    def emit_moves(self) -> None:
        """Emit the moves. All operands must have been evaluated."""
        for move in self._moves:
            self._b.emit(move)


# ---- methods that operators call


def lower_binary(b: GraphBuilder, e: Context, left: Expression, operator: str, right: Expression) -> Slot | bool | None:
    """Lower an operator with two operands as the call of a method, as `lower_operator` does."""
    if operator in ("in", "not in"):
        found = lower_operator(b, e, right, "__contains__", [left])
        if found is False and (found := lower_iteration(b, right)) is not False:
            b.read(left)
        return found
    method = op_methods.get(operator, "")
    found = lower_operator(b, e, left, method, [right])
    if found is False and method == "__ne__":  # object's own asks __eq__
        method = "__eq__"
        found = lower_operator(b, e, left, method, [right])
    return found if found is not False else lower_operator(b, e, right, reverse_op_methods.get(method, ""), [left])


def lower_operator(
    b: GraphBuilder,
    e: Context,
    receiver: Expression,
    method: str,
    given: Sequence[Expression] = (),
    *,
    evaluated: bool = False,
    result: Context | None = None,
) -> Slot | bool | None:
    """Lower the call of a method that a class of this module defines, and return the slot with the facts of its result.

    `evaluated`: the receiver has been. `result`: what has the method's result as its value, if that is not `e`.
    Return False, with nothing lowered, if the object's class defines no such method.
    """
    function = method_of(b, b.types.get(receiver), method)
    signature = None if function is None else get_proper_type(function.type)
    if function is None or not isinstance(signature, CallableType) or len(signature.arg_types) < len(given) + 1:
        return False
    effect = effect_in(b.module, function)
    named = [argument.variable.name for argument in function.arguments]
    operands, parts = Operands(b), [None if evaluated else b.read(receiver)]
    for name, formal, argument in zip(named[1:], signature.arg_types[1:], given, strict=False):
        kind = b.kind(argument)
        b.how = f"{method}()"
        operands.accepts = b.kinds.accepted(formal)
        spared = effect is not None and name in effect.spares and bool(kind & MOVES)
        taken = not spared and b.kinds.takes(formal, kind, signature.ret_type)
        moves = effect is not None and name in effect.moves and bool(kind & MOVES)
        parts.append(operands.evaluate(argument, taken or moves))
    place = place_of(b, receiver)
    if effect is None:
        operands.emit_moves()
    else:
        known = Arguments(b, e, effect, dict(zip(named[1:], given, strict=False)), _itself(function, place))
        known.use_parts()
        operands.emit_moves()
        known.borrow_parts()
        known.keep([(one, held) for one, held in zip(given, parts[1:], strict=True) if held is not None])
        b.emit(Forget(e, Place(ANY_GLOBAL), whole=True))
        if place is not None and named[0] not in effect.leaves:
            b.emit(Forget(e, place, whole=False))
        parts += known.move_parts()
        if result is not None or e is not receiver:
            known.give_part(result or e)
    b.may_raise()
    value = result or e
    keeps = b.kind(value) & EVERYTHING if isinstance(value, Expression) else EVERYTHING
    return b.build(e, parts, keeps)


def _itself(function: FuncDef, place: Place | None) -> dict[str, Place]:
    return {} if place is None else {function.arguments[0].variable.name: place}


def lower_question(b: GraphBuilder, e: CallExpr, function: str) -> Slot | None:
    """Lower what a function of Python's calls of its first argument, which has been evaluated: `abs(x)`, `list(x)`.

    Return the slot with the facts of the result.
    """
    found: Slot | bool | None = False
    if e.args and function in names.ASKED:
        found = lower_operator(b, e, e.args[0], f"__{function.rpartition('.')[2]}__", evaluated=True)
    elif e.args and function in names.ITERATES:
        lower_iteration(b, e.args[0], evaluated=True)
    return None if found is False else found


def lower_iteration(
    b: GraphBuilder, e: Expression, *, evaluated: bool = False, is_async: bool = False
) -> Slot | bool | None:
    """Lower the call of `__iter__`, and the first of `__next__` of an object that is its own iterator.

    Return False, with nothing lowered, for an object of no class of this module. `evaluated`: the object has been.
    `is_async`: the methods are those of `async for`.
    """
    begin, following = ("__aiter__", "__anext__") if is_async else ("__iter__", "__next__")
    found = lower_operator(b, e, e, begin, evaluated=evaluated)
    if found is not False and lower_operator(b, e, e, following, evaluated=True) is not False:
        return None
    return found


def lower_condition(b: GraphBuilder, e: Expression) -> None:
    """Lower an expression that is asked whether it is true. A handle and an op have no answer."""
    if not lower_truth(b, e):
        b.read(e)


def lower_truth(b: GraphBuilder, e: Expression) -> bool:
    """Lower the method by which an object of the user's says whether it is true. Return False if it has none."""
    if b.kind(e) & (HANDLE | OP):
        b.refuse(e, messages.NOT_READY, messages.taken_as_condition(b.is_op(e)))
    return any(lower_operator(b, e, e, method) is not False for method in ("__bool__", "__len__"))


def asked_items(b: GraphBuilder, name: str, arguments: Sequence[Expression]) -> list[Expression]:
    """Return the arguments of `any(ts)`, `filter(None, ts)` and their like whose items are asked whether they are true,
    and are handles or ops: these have no answer."""
    if name in names.ASKS_ITEMS:
        iterables = arguments[:1]
    elif name in names.TESTS and isinstance(arguments[0], RefExpr):
        iterables = arguments[1:] if arguments[0].fullname in ("builtins.None", names.BOOL) else []
    else:
        return []
    return [e for e in iterables if any(b.kinds.kind_of(item) & (HANDLE | OP) for item in _item_types(b, e))]


def _item_types(b: GraphBuilder, e: Expression) -> Sequence[Type]:
    if isinstance(e, ListExpr | TupleExpr | SetExpr):
        return [t for item in e.items if (t := b.types.get(item)) is not None]
    if isinstance(e, ListComprehension | SetComprehension):
        e = e.generator
    if isinstance(e, GeneratorExpr):
        one = b.types.get(e.left_expr)
        return () if one is None else (one,)
    t = get_proper_type(b.types.get(e))
    if isinstance(t, TupleType):
        return t.items
    return t.args[:1] if isinstance(t, Instance) else ()


def lower_container_call(b: GraphBuilder, e: CallExpr, callee: Callee) -> bool:
    """Lower the effect of a call on the items of its receiver or argument.

    Return True for a method of a container whose whole effect on the items is known.
    """
    container = callee.receiver
    if container is None:
        _take_of_iterable(b, e)
        _take_remembered(b, e)
        return False
    if callee.name == names.FORGETS_RESULTS and isinstance(container, RefExpr):
        if (function := function_of(container.node)) is not None:
            b.emit(Store(e, Place(b.slot(function)), None, 0))
        return True
    if not callee.name.startswith(("builtins.", "collections.", "typing.")):
        return False
    place = place_of(b, container)
    if place is None or not b.kinds.may_own(b.types.get(container)):
        return False
    if (end := names.TAKES_ITEM.get(callee.name)) is not None:
        _pop(b, e, container, place, end)
    elif callee.name in names.TAKES_VALUE:
        item = item_place(b, container, e.args[0]) if e.args else place.inside((ANY_ITEM,))
        if item is not None:
            take(b, e, item, itself=False, follows=bool(e.args), step=() if e.args else ("[1]",))
            if e.args:
                b.emit(Store(e, item, None, 0))
    elif callee.name in names.GIVES_VALUE and e.args:
        if (item := item_place(b, container, e.args[0])) is not None:
            take(b, e, item)
    else:
        return _rearrange(b, e, callee.name, place)
    return True


def is_own_container(b: GraphBuilder, e: Expression, *, returned: bool = True) -> bool:
    """Return True for an object that one local variable of this function alone names: what is put into it stays with
    the function. `returned`: also if the function returns it in the end."""
    variable = e.node if isinstance(e, NameExpr) else None
    return (
        isinstance(variable, Var)
        and b.slot(variable) in b.body.local
        and variable not in b.parameters
        and is_own_object(b.module, b.body, variable, returned=returned)
    )


def share_added(
    b: GraphBuilder, e: Context, added_ones: Iterable[Expression], container: Expression, *, last: bool
) -> None:
    """Share the named handles that have been put into a container with its items: with one, and with the last one."""
    place = place_of(b, container)
    for argument in added_ones:
        added = place_of(b, argument) if isinstance(argument, NameExpr) and b.kind(argument) & MOVES else None
        for step in ("[-1]", ONE_ITEM) if last else (ONE_ITEM,):
            item = None if place is None else place.inside((step,))
            if added is not None and item is not None:
                b.emit(Share(e, item, added))


def _rearrange(b: GraphBuilder, e: CallExpr, method: str, place: Place) -> bool:
    """Lower a method that adds or removes items, or changes their order. Return False for any other method."""
    if method in names.ADDS_BEHIND or method in names.REMOVES:
        b.emit(Rearrange(e, place, Change.BEHIND if method in names.ADDS_BEHIND else Change.REMOVES))
        if method in names.ADDS_ITEMS_OF and e.args:
            share_place(b, place, items_of_value(b, e.args[0], Relation.WITH_OTHERS), e)
    elif method in names.UPDATES and e.args:
        b.emit(Forget(e, place, whole=False))
        share_place(b, place, items_of_value(b, e.args[0]), e)
    elif method == "builtins.list.insert" or method in names.REORDERS:
        b.emit(Rearrange(e, place, Change.REORDERS if method in names.REORDERS else Change.ADDS))
    else:
        return method in names.LOOKS_AT_SELF
    return True


def _pop(b: GraphBuilder, e: CallExpr, container: Expression, place: Place, end: str) -> None:
    """Lower a call that takes an item out of a sequence: at an end, or at an index that is given."""
    item = item_place(b, container, e.args[0]) if e.args else place.inside((end,))
    if item is not None:
        take(b, e, item, itself=False)
    b.emit(Rearrange(e, place, Change.REMOVES))


def take(
    b: GraphBuilder,
    e: Context,
    *items: Place,
    itself: bool = True,
    follows: bool = True,
    reads: bool = True,
    step: Path = (),
) -> None:
    """Give the result of a call or an operator a place, of which the part at `step` shares with the place of an item:
    it is one of `items`.

    `itself`: the item stays where it is. `follows`: it has moved if it has moved out of that place before. `reads`: it
    is an error then to use the result.
    """
    result = Place(b.temporary())
    b.emit(Store(e, result, None, 0))
    for item in items:
        b.emit(Share(e, Place(result.slot, step), item, itself=itself, follows=follows))
    b.taken[e] = result
    if reads and e is not b.discarded:
        b.emit(Read(e, result))


def _take_remembered(b: GraphBuilder, e: CallExpr) -> None:
    """Give the result of a function that remembers its results, `weights()`, the place of that result."""
    node = e.callee.node if isinstance(e.callee, RefExpr) else None
    if not isinstance(node, Decorator) or not remembers(node) or not b.kinds.may_own(b.types.get(e)):
        return
    if all(isinstance(argument, IntExpr | StrExpr) for argument in e.args) and not any(e.arg_names):
        values = [repr(argument.value) for argument in e.args if isinstance(argument, IntExpr | StrExpr)]
        take(b, e, Place(b.slot(node.func), (f"({', '.join(values)})",)))


def _take_of_iterable(b: GraphBuilder, e: CallExpr) -> None:
    """Give the result of `max(ts)`, `next(iter(ts))` or `reduce(better, ts)` a place, which shares with one item."""
    if not isinstance(e.callee, RefExpr) or not e.args or not b.kinds.may_own(b.types.get(e)):
        return
    positional = [argument for argument, name in zip(e.args, e.arg_names, strict=True) if name is None]
    if e.callee.fullname in names.REDUCES and picks_item(b, e):
        positional = positional[1:]
    elif e.callee.fullname not in names.GIVES_ITEM:
        return
    named = [place_of(b, argument) for argument in positional] if len(positional) > 1 else []
    element = element_of(b, positional[0]) if len(positional) == 1 else None
    if isinstance(element, Choice):
        named = [option.place for option in element.options if isinstance(option, Known)]
    if any(named):
        take(b, e, *(place for place in named if place is not None), follows=False)
    elif isinstance(element, Known) and element.place.path and element.place.path[-1] == ANY_ITEM:
        begins = e.callee.fullname == "builtins.next" and is_call_of(positional[0], "builtins.iter")
        step = "[0]" if begins else ONE_ITEM
        take(b, e, Place(element.place.slot, (*element.place.path[:-1], step)), follows=False)


def is_call_of(e: Expression, name: str) -> bool:
    """Return True for a call of the function or class of this full name."""
    return isinstance(e, CallExpr) and isinstance(e.callee, NameExpr) and e.callee.fullname == name


# ---- parts of arguments


class Arguments:
    """The arguments of a call, or the object whose property, item or `with` block is asked for."""

    def __init__(
        self, b: GraphBuilder, node: Context, effect: Effect, given: Mapping[str, Expression], places: dict[str, Place]
    ) -> None:
        """`given` are expressions that are passed, by parameter, `places` those of other arguments."""
        self._b = b
        self._node = node
        self._effect = effect
        self._given = given
        self._places = places

    def place(self, part: Part) -> Place | None:
        """Return the place of a part of an argument."""
        name, path = part
        place = self._places.get(name)
        if place is None and (value := self._given.get(name)) is not None:
            place = place_of(self._b, value)
        elif place is None and (variable := self._b.module.variable(name)) is not None:
            place = Place(self._b.slot(variable))
        return None if place is None else place.inside(path)

    def use_parts(self) -> None:
        """Read the attributes that the function uses: `box.size()` uses `box.first`."""
        for part in self._effect.uses:
            if (place := self.place(part)) is not None:
                self._b.emit(Read(self._node, place))

    def borrow_parts(self) -> None:
        """Lend, for the time of the call, what the function lends: no other loan may be alive of what it writes, and
        none for writing of what it reads."""
        for part, exclusive in self._effect.borrows:
            if not part.path and part.parameter not in self._effect.spares:
                continue
            if (place := self.place(part)) is not None:
                self._b.emit(Lend(self._node, place, self._b.temporary(), exclusive))

    def move_parts(self) -> list[Slot]:
        """Record the attributes that the function has moved: `box.drain()` moves `box.first`.

        Return the slots of those that its result borrows.
        """
        for move in self.moves():
            self._b.emit(move)
        lent: list[Slot] = []
        for part, exclusive in self._effect.lends:
            if (place := self.place(part)) is not None:
                into = self._b.temporary()
                lent.append(into)
                self._b.emit(Lend(self._node, place, into, exclusive))
        return lent

    def give_part(self, e: Context) -> None:
        """Give the result of a call or an operator the place of the part that the function returns."""
        part = self._effect.gives
        if part is None or (not part.path and self._is_moved(part.parameter)):
            return
        if (place := self.place(part)) is not None:
            take(self._b, e, place, follows=part not in self._effect.uses, reads=False)

    def _is_moved(self, parameter: str) -> bool:
        value = self._given.get(parameter)
        return value is not None and bool(self._b.kind(value) & MOVES)

    def moves(self) -> list[Move]:
        """Return the moves of the attributes that the function has moved where it ends."""
        return self._moves(self._effect.parts, silent=True)

    def moves_at_exit(self) -> list[Move]:
        """Return the moves at the end of the block of a context manager."""
        return self._moves(self._effect.at_exit, silent=False)

    def _moves(self, parts: Iterable[tuple[Part, str]], *, silent: bool) -> list[Move]:
        found: list[Move] = []
        for part, how in parts:
            if (place := self.place(part)) is not None:
                found.append(Move(self._node, place, self._b.temporary(), how, silent))
        return found

    def keep(self, given: Sequence[tuple[Expression, Slot]]) -> None:
        """Record the arguments that others keep. `given` are those that hold facts."""
        for name, holder in self._effect.keeps:
            value, place = self._given.get(name), self.place(Part(holder, ()))
            held = [pair for pair in given if pair[0] is value]
            if place is not None and held:
                self._b.add_to_container(self._node, place.slot, held, "put where it outlives")
