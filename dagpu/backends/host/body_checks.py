"""Checked calls of the host bodies of foreign ops; see `dagpu.backends.common.checks.checked_bodies`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dagpu.backends.common.checks.checked_bodies import (
    GuardedMemory,
    check_outputs,
    check_written,
    layout_of,
    refuse_changed_input,
)
from dagpu.plans.program import Launch


def call_checked(launch: Launch, arguments: list[Any], call: Callable[[list[Any]], None]) -> None:
    """Call the body of a foreign op on arrays, and check what it does. `arguments` has the op's arrays and numbers, in
    the order of the parameters.

    The body gets copies of the outputs. These are copied back if all is well, and else the op fails.

    Raises:
        ForeignError: it writes something that is no output, or leaves a new tensor unwritten.
    """
    kernel = launch.kernel
    inputs = [index for index, param in kernel.tensors if param.form.is_input]
    before = {index: np.array(arguments[index], copy=True) for index in inputs}
    kept = []
    for flipped in (False, True):
        given = list(arguments)
        guarded: list[tuple[int, GuardedMemory]] = []
        images = []
        for index, param in kernel.tensors:
            if not param.form.is_written:
                continue
            layout, is_new = layout_of(launch, index), index >= len(kernel.params) - kernel.results
            memory = GuardedMemory(layout, None, flipped=flipped)
            image = memory.image.copy()
            given[index] = np.ndarray(layout.shape, layout.dtype, image, memory.first, layout.strides)
            if not is_new:
                given[index][...] = arguments[index]
                memory = GuardedMemory(layout, memory.inside(image), flipped=flipped)
            guarded.append((index, memory))
            images.append(image)
        call(given)
        for index in inputs:
            if arguments[index].tobytes() != before[index].tobytes():
                raise refuse_changed_input(launch, index)
        kept.append(check_outputs(launch, guarded, images))
        if not any(mask.any() for mask in kept[-1]):
            break
    else:
        check_written(launch, guarded, kept)
    for index, _ in guarded:
        arguments[index][...] = given[index]
