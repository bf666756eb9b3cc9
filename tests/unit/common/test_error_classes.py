"""Every error class of dagpu survives a copy and a pickle, also as Dask makes one."""

import copy
import copyreg
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import pytest

import dagpu
from dagpu import OutOfMemoryError
from dagpu.common import errors

_SKIPPED = ("dagpu.backends.cuda", "dagpu.mypy_plugin", "dagpu.__main__")
"""What imports a driver or mypy."""


def _below(base: type[BaseException]) -> Iterator[type[BaseException]]:
    for found in base.__subclasses__():
        yield found
        yield from _below(found)


def _by_pickle(protocol: int, error: BaseException) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


def _classes() -> list[type[BaseException]]:
    """All exception classes in the modules of dagpu that can be imported anywhere."""
    for module in pkgutil.walk_packages(dagpu.__path__, "dagpu."):
        if not module.name.startswith(_SKIPPED):
            try:
                importlib.import_module(module.name)
            except ImportError:  # it needs a library that is not here
                continue
    found = {each for each in _below(BaseException) if each.__module__.startswith("dagpu.")}
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


def _made(kind: type[BaseException]) -> BaseException:
    """An error with all that it may carry."""
    error = kind("what\nwhere\ncure") if issubclass(kind, errors.DagpuError) else kind(7, 3)
    if isinstance(error, errors.DeviceError):
        error.code = 719
    error.add_note("dagpu: on worker w1")
    try:
        raise error from ValueError("cause")
    except BaseException as raised:
        return raised


_WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"pickle {protocol}": partial(_by_pickle, protocol) for protocol in range(2, 6)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "tblib": partial(_by_pickle, 5),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__qualname__)
def test_an_error_keeps_what_it_says(kind: type[BaseException], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its type, arguments, attributes, notes and text are the same after a copy and a pickle, and after the pickle that
    Dask makes by `tblib`, its cause too."""
    monkeypatch.delitem(copyreg.dispatch_table, kind, raising=False)
    if way == "tblib":
        tblib = pytest.importorskip("tblib.pickling_support", reason="Dask brings it: pip install 'dagpu[cluster]'")
        for each in (kind, ValueError):
            monkeypatch.setitem(copyreg.dispatch_table, each, tblib.pickle_exception)
        monkeypatch.setitem(copyreg.dispatch_table, TracebackType, tblib.pickle_traceback)
    error = _made(kind)
    found = _WAYS[way](error)
    assert type(found) is kind
    assert (found.args, vars(found), str(found), repr(found)) == (error.args, vars(error), str(error), repr(error))
    assert found.__notes__ == ["dagpu: on worker w1"]
    assert type(found.__cause__) is (ValueError if way == "tblib" else type(None))


def test_all_public_errors_are_tried() -> None:
    """The reflection finds the classes of the public module, those with attributes of their own among them."""
    public = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert public <= {*_classes()}
    assert OutOfMemoryError in public
