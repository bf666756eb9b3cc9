"""Signatures as users write them: `In[_D]` and `Out[_D]`, not the unions of handles and
ops that the two stand for, functions of arrays under the name `dagpu.array`, and the
constructors of those classes alone that users call.

autodoc evaluates annotations, which loses the names of aliases. It has no hook for the
text of one annotation, so this replaces the function of Sphinx that writes it.
"""

import types
from typing import Any, ParamSpecArgs, ParamSpecKwargs, Union, get_args, get_origin

from docutils import nodes
from sphinx import addnodes
from sphinx.util import inspect as sphinx_inspect
from sphinx.util import typing as sphinx_typing

import dagpu
from dagpu import DeviceOp, Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.kernels.annotations import In, Out

NAMES = {In.__metadata__[0]: "In", Out.__metadata__[0]: "Out"}
"""The marks in the two aliases, and the names of these."""
HANDLES = (
    DeviceOp,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    Union,
    types.UnionType,
)

MADE_BY_USERS = (
    dagpu.Along,
    dagpu.Around,
    dagpu.Blocks,
    dagpu.Columns,
    dagpu.CostModel,
    dagpu.Cyclic,
    dagpu.Here,
    dagpu.Link,
    dagpu.Links,
    dagpu.ListSchedule,
    dagpu.Mesh,
    dagpu.RoundRobin,
    dagpu.Rows,
    dagpu.SingleStream,
    dagpu.Spread,
    dagpu.StreamInterpreter,
    dagpu.Tls,
)
"""The classes whose constructors the reference shows. Functions and methods make the
objects of the other classes."""

_whole = sphinx_typing.stringify_annotation


def written(annotation: Any, /, *more: Any, **options: Any) -> str:
    """Return the text of an annotation."""
    for mark in getattr(annotation, "__metadata__", ()):
        if mark in NAMES:
            element = annotation.__origin__
            while get_origin(element) in HANDLES:
                element = get_args(element)[0]
            return f"{NAMES[mark]}[{written(element, *more, **options)}]"
    if isinstance(annotation, tuple):  # the parameters that stand for a ParamSpec
        return (
            f"[{', '.join([written(each, *more, **options) for each in annotation])}]"
        )
    if isinstance(annotation, ParamSpecArgs | ParamSpecKwargs):
        return str(annotation)
    if hasattr(annotation, "__bound__") and hasattr(annotation, "__name__"):
        return str(annotation.__name__)  # a type variable
    return _whole(annotation, *more, **options)


def hide_constructors(
    _app: Any, _what: str, name: str, member: Any, _skip: bool, _options: Any
) -> bool | None:
    """Leave out the constructors that users do not call."""
    shown = [cls.__init__ for cls in MADE_BY_USERS]
    return True if name == "__init__" and member not in shown else None


def name_arrays(_app: Any, page: nodes.document) -> None:
    """Name the functions of arrays by the public name of their module."""
    for prefix in page.findall(addnodes.desc_addname):
        if prefix.astext() == "dagpu.kernels.arrays.":
            prefix[:] = [nodes.Text("dagpu.array.")]


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    for module in (sphinx_typing, sphinx_inspect):
        module.stringify_annotation = written
    app.connect("autodoc-skip-member", hide_constructors)
    app.connect("doctree-read", name_arrays)
    return {"parallel_read_safe": True}
