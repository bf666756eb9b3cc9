"""Updates of feeds by what changes: one or several sources, numbers of each type, tensors, arrays, parts of these."""

import gc
import math
from typing import Any

import numpy as np
import trio
from outcome import Value

import dagpu
from dagpu import batch, cutoff, from_host, full, observe, ones, source, zip_ops
from dagpu.reactive.update_plans import UpdatePlan
from tests.compiled.feeds.worlds import OFTEN, Asked, add_case, added, array, scaled, tensor, tuned, watched
from tests.compiled.worlds import S, World, case, told

# ---- numbers


@case(serves=12)
def a_number(w: World) -> Any:
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        for value in (0.5, 0.0, -0.0, math.nan, 1e-45, 3.4e38, math.inf, -math.inf, 0.25, 7.0):
            number.set(value)
            await asked.next()

    return watched(w, scaled(number, x), script)


@case(serves=5)
def numbers_that_do_not_fit(w: World) -> Any:
    """Each is refused as Python refuses it, and the value after it is right."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        wrong: Any
        for wrong in (1e39, True, "a", 3, 1 << 70, None, -1e300):
            number.set(wrong)
            try:
                await asked.next()
            except Exception as error:
                w.note(type(error).__name__)
            await asked.times(OFTEN, lambda n: number.set(n + 0.5))

    return watched(w, scaled(number, x), script)


@case(serves=20)
def numbers_of_other_types(w: World) -> Any:
    k, b, x = source(1), source(False), tensor()

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        await asked.times(OFTEN, lambda n: k.set(n + 2))
        await asked.times(OFTEN, lambda n: b.set(n % 2 == 0))
        wrong: Any
        for value in ((1 << 63) - 1, -(1 << 63), 0, -1, 1 << 32):
            k.set(value)
            await asked.next()
        for wrong in (1 << 63, 1.5, True, -(1 << 63) - 1):
            k.set(wrong)
            try:
                await asked.next()
            except Exception as error:
                w.note(type(error).__name__)
            await asked.times(OFTEN, lambda n: k.set(n + 100))
        for wrong in (1, 0.0, False):
            b.set(wrong)
            try:
                await asked.next()
            except Exception as error:
                w.note(type(error).__name__)
            await asked.times(OFTEN, lambda n: b.set(n % 2 == 0))

    return watched(w, tuned(k, b, x), script)


@case(serves=5)
def equal_numbers_and_several_changes(w: World) -> Any:
    """A number that is set to itself changes nothing; of several changes between two values all but one are skipped."""
    number, other, x = source(1.0), source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        for count in range(1, 6):
            for k in range(count):
                number.set(100.0 * count + k)
            other.set(float(count))
            other.set(float(count) + 0.5)
            with batch():
                number.set(-1.0)
                number.set(100.0 * count + 50.0)
            await asked.next()
            number.set(100.0 * count + 50.0)
            with trio.move_on_after(0) as scope:
                await asked.next()
            w.note(scope.cancelled_caught)
        await asked.times(3, lambda n: number.set(float(n)))

    return watched(w, zip_ops(scaled(number, x).share(), scaled(other, x).share()), script)


# ---- several sources


@case(serves=40)
def every_set_of_three_sources(w: World) -> Any:
    """Each set of sources that changes has an update of its own."""
    numbers, x = [source(float(k)) for k in range(3)], tensor()
    op = zip_ops(
        scaled(numbers[0], scaled(numbers[1], x)).share(), added(scaled(numbers[2], x), scaled(numbers[0], x)).share()
    )

    async def script(asked: Asked) -> None:
        count = 0
        for _ in range(OFTEN + 2):
            for mask in range(1, 8):
                with batch():
                    for k, each in enumerate(numbers):
                        if mask >> k & 1:
                            count += 1
                            each.set(float(count))
                await asked.next()
        for mask in (7, 1, 6, 3, 5, 4, 2):
            for k, each in enumerate(numbers):
                if mask >> k & 1:
                    count += 1
                    each.set(float(count))
            await asked.next()

    return watched(w, op, script)


@case(serves=300)
def more_sets_of_sources_than_plans_are_kept(w: World) -> Any:
    """The plans of the others are dropped, also where the compiled reader has made their updates."""
    numbers, x = [source(0.5) for _ in range(7)], tensor()
    op = scaled(numbers[0], x)
    for each in numbers[1:]:
        op = added(op, scaled(each, x))

    async def main() -> int:
        async with observe(op) as feed:
            await feed.next()
            for mask in range(1, 128):
                for n in range(OFTEN + 2):
                    with batch():
                        for k, each in enumerate(numbers):
                            if mask >> k & 1:
                                each.set(n + mask + 0.25)
                    await feed.next()
            gc.collect()
            return sum(type(each) is UpdatePlan for each in gc.get_objects())

    w.is_steady = False
    return trio.run(main)


@case(serves=13)
def changes_of_a_batch_are_seen_together(w: World) -> Any:
    one, two, x = source(1.0), source(2.0), tensor()

    async def script(asked: Asked) -> None:
        def both(n: int) -> None:
            with batch():
                one.set(float(n))
                two.set(-float(n))

        await asked.times(OFTEN + 3, both)
        await asked.times(OFTEN + 3, lambda n: two.set(n + 50.0))
        with batch():
            one.set(9.0)
            w.note(one.get())
            two.set(10.0)
        await asked.next()
        with batch():
            one.set(11.0)
            two.set(2.0)
            two.set(10.0)  # as before
        await asked.next()

    return watched(w, added(scaled(one, x), scaled(two, x)), script)


@case(serves=8)
def a_source_that_is_read_twice(w: World) -> Any:
    """Its number is that of two kernels, and one of two arguments of one."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 6, lambda n: number.set(float(n + 2)))

    return watched(w, scaled(number, scaled(number, x)), script)


@case()
def a_tensor_that_is_read_twice(w: World) -> Any:
    given = source(tensor())

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 6, lambda n: given.set(tensor(n)))

    return watched(w, added(given, scaled(0.5, added(given, given))), script)


# ---- tensors


@case(serves=8)
def a_source_of_tensors(w: World) -> Any:
    """The tensors are of the user's memory, one of them twice, and one that moves in."""
    given, number = source(tensor()), source(0.5)
    kept = [tensor(k) for k in range(3)]

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: given.set(kept[n % 3]))
        for each in (kept[0], kept[0], kept[2], full(S, 4).sync(), tensor(5)):
            given.set(each)
            await asked.next()
            w.note(asked.place(given.get()), w.lock_of(given.get()))
        await asked.times(OFTEN, lambda n: number.set(float(n)))
        w.note([w.lock_of(each) for each in kept])

    return watched(w, scaled(number, given), script)


@case(serves=4)
def tensors_of_another_layout(w: World) -> Any:
    """Those of another shape, and parts of a larger one, need another trace; those of the same layout do not."""
    given, number = source(tensor()), source(0.5)

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        shapes = (S, (4, 4), (8, 4), (4, 8), S)
        for shape in shapes:
            for _ in range(OFTEN):
                given.set(ones(shape).sync())
                await asked.next()
            await asked.times(OFTEN, lambda n: number.set(float(n)))

    return watched(w, scaled(number, given.map(lambda x: x)), script)


@case(serves=8)
def parts_of_a_tensor_are_written(w: World) -> Any:
    """An update of a part runs some tiles, and is made by Python; those of numbers before and after it are not."""
    given, number = source(tensor()), source(0.5)

    async def script(asked: Asked) -> None:
        at = (slice(0, 2), slice(0, 4))
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        for n in range(3):
            given.write(at, np.full((2, 4), n, np.float32))
            await asked.next()
            w.note(asked.place(given.get()))
            await asked.times(OFTEN + 2, lambda n: number.set(n + 30.0))
        given.write(at, tensor_part())
        number.set(3.0)
        await asked.next()
        await asked.times(OFTEN + 2, lambda n: given.set(tensor(n)))
        with batch():
            given.set(tensor(3))
            given.write(at, tensor_part())
        await asked.next()
        await asked.times(2, lambda n: given.set(tensor(n)))

    return watched(w, scaled(number, given), script)


def tensor_part() -> Any:
    return full((2, 4), 7).sync()


@case(serves=4)
def a_tensor_is_written_while_an_update_reads_it(w: World) -> Any:
    """The write goes to a copy: what is under way reads what was there before."""
    given, number = source(tensor()), source(0.5)
    at = (slice(0, 2), slice(0, 4))

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        for n in range(3):
            before = asked.place(given.get())
            number.set(20.0 + n)
            coroutine: Any = asked.feed.next()
            w.note(type(coroutine.send(None)).__name__)
            given.write(at, np.full((2, 4), n, np.float32))
            w.note(before == asked.place(given.get()))
            w.driver.log()
            value = last_step(coroutine)
            asked.note(value)
            await asked.next()
            w.note(asked.place(given.get()))
            await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
            given.write(at, np.full((2, 4), n, np.float32))  # nothing reads it: in place
            w.note(asked.place(given.get()))
            await asked.next()
            await asked.times(OFTEN + 2, lambda n: number.set(float(n)))

    return watched(w, scaled(number, given), script)


def last_step(coroutine: Any) -> Any:
    """Let a coroutine that has given the others their turn go on to its end, and return its value."""
    try:
        coroutine.send(Value(None))
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it goes on")


# ---- arrays


@case()
def a_source_of_arrays(w: World) -> Any:
    """Their copies to the device are no part of a launch of kernels."""
    given, number = source(array(1)), source(0.5)

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        await asked.times(OFTEN + 2, lambda n: given.set(array(n)))
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        await asked.times(3, lambda n: given.write((slice(0, 2), slice(0, 4)), np.full((2, 4), n, np.float32)))
        await asked.times(3, lambda n: number.set(float(n)))
        given.set(np.ones((8, 4), np.float32))
        await asked.next()
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        await asked.times(3, lambda n: given.set(np.full((8, 4), n, np.float32)))

    return watched(w, scaled(number, given.then(from_host)), script)


# ---- cutoffs, and closures


@case()
def a_cutoff_of_a_number(w: World) -> Any:
    number, other, x = source(1.0), source(2.0), tensor()
    whole = cutoff(number.map(lambda a: float(int(a))))

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(n / 2))
        await asked.times(OFTEN + 2, lambda n: other.set(float(n)))
        number.set(number.get() + 0.125)
        await asked.next()

    return watched(w, zip_ops(scaled(whole, x).share(), scaled(other, x).share()), script)


@case()
def a_cutoff_of_a_tensor(w: World) -> Any:
    number, other, x = source(1.0), source(2.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        await asked.times(OFTEN + 2, lambda n: other.set(float(n)))

    return watched(w, scaled(other, cutoff(scaled(number, x))), script)


@case()
def a_number_that_a_closure_makes(w: World) -> Any:
    number, other, x = source(1.0), source(2.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n)))
        await asked.times(OFTEN + 2, lambda n: other.set(float(n)))

    return watched(w, scaled(number.map(lambda a: 2 * a), scaled(other, x)), script)


@case()
def a_closure_that_builds_the_op_of_a_number(w: World) -> Any:
    """Each change of the number needs another trace; those of the other do not."""
    number, other, x = source(1), source(2.0), tensor()
    op = number.then(lambda k: scaled(other, x) if k % 2 else added(x, scaled(other, x)))

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        for n in range(3):
            await asked.times(OFTEN + 2, lambda n: other.set(float(n)))
            number.set(n)
            await asked.next()

    return watched(w, op, script)


# ---- results of several parts


def add_results(name: str, make: Any, serves: int) -> None:
    def run(w: World) -> Any:
        one, two, x, given = source(1.0), source(2.0), tensor(), source(tensor())

        async def script(asked: Asked) -> None:
            await asked.times(OFTEN + 2, lambda n: one.set(float(n)))
            await asked.times(OFTEN + 2, lambda n: two.set(float(n)))
            await asked.times(OFTEN + 2, lambda n: given.set(tensor(n)))
            with batch():
                one.set(50.0)
                two.set(60.0)
            await asked.next()

        return watched(w, make(one, two, x, given), script)

    add_case(f"a result that is {name}", run, serves)


def pair(one: Any, two: Any, x: Any, given: Any) -> Any:
    return zip_ops(scaled(one, x).share(), scaled(two, given).share())


add_results("a tuple", pair, 9)
add_results("a list", lambda *given: pair(*given).map(list), 9)
add_results("a dict", lambda *given: pair(*given).map(lambda p: {"a": p[0], "b": p}), 9)
add_results("a source too", lambda *given: zip_ops(pair(*given), given[0], given[3]), 9)
add_results("the op's own tensor too", lambda *given: zip_ops(dagpu.value(given[2]), pair(*given)), 9)
add_results("on the host", lambda *given: zip_ops(*[each.to_host() for each in singles(*given)]), 0)
add_results("of a closure", lambda *given: singles(*given)[0].to_host().map(lambda a: float(a.sum())), 0)
add_results("the same twice", lambda *given: twice(scaled(given[0], scaled(given[1], given[3])).share().shared()), 9)


def singles(one: Any, two: Any, x: Any, given: Any) -> list[Any]:
    return [scaled(one, scaled(two, given)), scaled(two, x)]


def twice(node: Any) -> Any:
    return zip_ops(node, node)


# ---- another trace in between


@case(serves=8)
def an_op_that_another_trace_changes(w: World) -> Any:
    """The updates of the trace before it are made no more."""
    number, shape, x = source(1.0), source(4), tensor()
    op = shape.then(lambda n: scaled(number, x) if n == 4 else added(ones((n, 4)), ones((n, 4))))

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        for n in (8, 4, 8, 4):
            shape.set(n)
            await asked.next()
            if n == 4:
                await asked.times(OFTEN + 3, lambda n: number.set(float(n)))

    return watched(w, op, script)


@case(serves=6)
def a_feed_that_checks_and_one_with_a_limit(w: World) -> Any:
    number, x = source(1.0), tensor()
    op = scaled(number, scaled(2.0, scaled(number, x)))

    w.is_steady = False

    async def main() -> None:
        async with observe(op, memory=64) as feed:
            asked = Asked(w, feed)
            await asked.times(OFTEN + 4, lambda n: number.set(float(n)))
            w.note(feed.explain())
        async with observe(op, check=True) as feed:
            for n in range(OFTEN + 3):
                number.set(float(n))
                w.note(told(await feed.next()))

    return trio.run(main)
