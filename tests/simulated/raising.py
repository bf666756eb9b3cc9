"""An exception at a line of a function, as a signal handler of the user's raises it."""

import linecache
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, final

from dagpu.runtime.direct_call import DirectCall
from dagpu.runtime.loaded_plan import CALL
from dagpu.runtime.plan_lookup import PlanCache


def direct_call(pipeline: Any) -> DirectCall:
    """The direct call of the latest plan of a pipeline, which has run at least twice with equal arguments."""
    plans: PlanCache = pipeline.plans
    assert plans.latest is not None
    direct: DirectCall = plans.latest.direct[CALL]
    return direct


def lines_of_call(pipeline: Any, *, awaits: bool = False) -> Iterator[tuple[CodeType, int]]:
    """The lines of the direct call of a pipeline, and of what begins it, as `lines_to_try`."""
    direct = direct_call(pipeline)
    yield from lines_to_try(direct.in_task if awaits else direct.now)
    yield from lines_to_try(direct._begin)  # noqa: SLF001


def code_of(function: Callable[..., object]) -> CodeType:
    """The code of a Python function."""
    code: CodeType = function.__code__
    return code


def lines_to_try(function: Callable[..., object]) -> Iterator[tuple[CodeType, int]]:
    """The lines of a function at which an exception may be expected to leave nothing.

    An exception at the first or last instruction of a `with` block leaves it without a call of `__exit__`.
    """
    code = code_of(function)
    for line in sorted({line for _, _, line in code.co_lines() if line is not None}):
        if not linecache.getline(code.co_filename, line).strip().startswith(("with ", "try:")):
            yield code, line


@final
class RaisingAt:
    """Raises a TimeoutError the first time that this thread comes to a line of a function."""

    def __init__(self, code: CodeType, line: int) -> None:
        self._code = code
        self._at = line
        self.raised = False

    def __enter__(self) -> "RaisingAt":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not self._code:
            return None
        if event == "line" and frame.f_lineno == self._at and not self.raised:
            self.raised = True
            raise TimeoutError(self._at)
        return self._trace


@final
class ActingAt:
    """Acts before each run of a line, as another thread may."""

    def __init__(self, code: CodeType, line: int, act: Callable[[], object]) -> None:
        self._code = code
        self._at = line
        self._act = act

    def __enter__(self) -> "ActingAt":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not self._code:
            return None
        if event == "line" and frame.f_lineno == self._at:
            self._act()
        return self._trace
