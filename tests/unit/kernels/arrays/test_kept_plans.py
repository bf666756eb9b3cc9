"""Plans of libraries: how many are kept, when they are freed, and what a call of one sets."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import DeviceError, c64
from dagpu.arrays.nvidia.cufft import Direction, TransformPlan
from dagpu.arrays.nvidia.libraries import KeptPlans
from dagpu.testing import contiguous_layout


class MadePlan:
    """A plan that notes when it is freed. `alive` are the keys of all that are not."""

    def __init__(self, key: Any, alive: list[Any]) -> None:
        alive.append(key)
        self.key = key
        self.release: Any = partial(alive.remove, key)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.booleans()), max_size=40), st.integers(1, 4))
def test_the_plans_used_last_are_kept(asked: Any, most: int) -> None:
    """Of each device. One that is no longer kept is freed by the next that is made there, once nothing refers to it."""
    plans, alive, held = KeptPlans[MadePlan](most), list[Any](), list[MadePlan]()
    kept: dict[int, list[Any]] = {0: [], 1: []}
    for device, key, hold in asked:
        before = len(alive)
        found = plans.find(device, key, partial(MadePlan, (device, key), alive))
        assert found.key == (device, key)
        if key in kept[device]:
            assert len(alive) == before
            kept[device].remove(key)
        kept[device] = [*kept[device], key][-most:]
        if hold:
            held.append(found)
        del found
    held_keys = [plan.key for plan in {id(plan): plan for plan in held}.values()]
    for device, keys in kept.items():
        plans.find(device, "another", partial(MadePlan, (device, "another"), alive))
        kept[device] = [*keys, "another"][-most:]
    both = [(device, key) for device, keys in kept.items() for key in keys]
    assert set(alive) == {*both, *held_keys}
    assert len(alive) <= len(both) + len(held_keys)


def test_one_thread_makes_a_plan_and_another_waits_for_no_other_key() -> None:
    """Two threads that ask for one plan get the same; a plan that is kept is found while another one is made."""
    plans, alive = KeptPlans[MadePlan](4), list[Any]()
    kept = plans.find(0, "kept", partial(MadePlan, "kept", alive))
    begun, go_on, found = threading.Event(), threading.Event(), list[MadePlan]()

    def make() -> MadePlan:
        begun.set()
        assert go_on.wait(60)
        return MadePlan("slow", alive)

    threads = [threading.Thread(target=lambda: found.append(plans.find(0, "slow", make))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    assert plans.find(0, "kept", make) is kept
    assert plans.get(0, "slow") is None
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert found[0] is found[1]


def test_what_cannot_be_made_is_not_kept() -> None:
    """The next call makes it; a plan that cannot be freed, since its device is lost, hinders none."""
    plans = KeptPlans[MadePlan](1)

    def fails() -> Any:
        raise ValueError("no plan")

    with pytest.raises(ValueError, match="no plan"):
        plans.find(0, 1, fails)
    for key in range(3):
        plan = plans.find(0, key, partial(MadePlan, 0, [0]))
        plan.release = fails
        assert plans.get(0, key) is plan


class Transforms:
    """cuFFT with one plan: what it holds at each transform, and the calls that set that."""

    def __init__(self) -> None:
        self.stream = self.area = 0
        self.set: list[tuple[str, int]] = []
        self.transforms: list[tuple[int, int]] = []
        self.refuses = False

    def destroy(self, plan: int) -> None:
        """Free a plan."""

    def set_auto_allocation(self, plan: int, on: int) -> None:
        """Leave the work area to the caller."""

    def make_plan_many64(self, *arguments: object) -> int:
        return 512

    def set_stream(self, plan: int, stream: int) -> None:
        self.stream = stream
        self.set.append(("stream", stream))
        if self.refuses:
            raise ValueError("refused")

    def set_work_area(self, plan: int, area: int) -> None:
        self.area = area
        self.set.append(("area", area))

    def exec_c2c(self, plan: int, x: int, out: int, direction: int) -> None:
        self.transforms.append((self.stream, self.area))


def test_a_transform_sets_what_differs_from_the_call_before() -> None:
    """Each is in its own stream and work area. After an error the plan is not trusted to hold the stream."""
    library, layout = Transforms(), contiguous_layout((4, 8), np.dtype(c64))
    plan = TransformPlan(library, 7, layout, layout, Direction(False, 1))
    calls = [(1, 100), (1, 100), (2, 100), (2, 300), (1, 100)]
    for stream, area in calls:
        plan.enqueue(stream, (10, 20), area)
    assert library.transforms == calls
    assert library.set == [
        ("stream", 1), ("area", 100), ("stream", 2), ("area", 300), ("stream", 1), ("area", 100)
    ]  # fmt: skip
    library.refuses = True
    with pytest.raises(DeviceError, match="cufftExec failed: refused"):
        plan.enqueue(2, (10, 20), 100)
    library.refuses = False
    plan.enqueue(1, (10, 20), 100)
    assert library.transforms[-1] == (1, 100)
