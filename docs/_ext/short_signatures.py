"""Signatures as users write them.

- `In[D]` and `Out[D]`, not the unions of handles and ops that the two stand for;
  `NDArray[N]`; the usual shape is left out; type variables without their underscores.
- Classes and functions by the names under which users import them, and the parameters
  of generic classes.
- The constructors of those classes alone that users call, and no methods that only
  other modules of dagpu call.
- Of several signatures equal ones once, and all but the first folded.

autodoc evaluates annotations, which loses the names of aliases. It has no hook for the
text of one annotation, so this replaces the function of Sphinx that writes it.
"""

import dataclasses
import re
import types
from typing import Any, ParamSpecArgs, ParamSpecKwargs, Union, get_args, get_origin

import numpy as np
from docutils import nodes
from sphinx import addnodes
from sphinx.util import inspect as sphinx_inspect
from sphinx.util import typing as sphinx_typing

import dagpu
from dagpu import DeviceOp, Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu import interop as dagpu_interop
from dagpu.common.layout import Shape
from dagpu.kernels.annotations import In, Out
from dagpu.plans.plan import Plan

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

OURS_ALONE = (
    dagpu.Flow.begin,
    dagpu.Stats.count_call,
    dagpu.Stats.hand_over,
    dagpu.StreamInterpreter.settings,
    dagpu.Trace.begin,
    dagpu.Trace.end,
    dagpu.Trace.track,
)
"""Methods that other modules of dagpu call, and no user."""

VARIABLE = re.compile(r"\b_([A-Z]\w*?)(?:_co|_contra)?\b")
"""The name of a type variable; the group is how the reference writes it."""

QUOTED = re.compile(r"'(\w+\[[^']*\])'")
"""A type in quotes, as in `tuple["DeviceOp[_T]", int]`."""

_whole = sphinx_typing.stringify_annotation


def _public_names() -> dict[type[Any], str]:
    """Return the full names under which users import our classes."""
    found = {Plan: "dagpu.plans.plan.Plan"}
    for module, where in ((dagpu_interop, "dagpu.interop"), (dagpu, "dagpu")):
        for name in module.__all__:
            cls = getattr(module, name)
            if isinstance(cls, type) and cls.__module__.startswith("dagpu."):
                found[cls] = f"{where}.{name}"
    return found


PUBLIC = _public_names()


def written(annotation: Any, /, *more: Any, **options: Any) -> str:
    """Return the text of an annotation."""
    for mark in getattr(annotation, "__metadata__", ()):
        if mark in NAMES:
            element = annotation.__origin__
            while get_origin(element) in HANDLES:
                element = get_args(element)[0]
            return f"{NAMES[mark]}[{written(element, *more, **options)}]"
    if isinstance(annotation, str):  # of an overload of a decorated method
        return VARIABLE.sub(
            r"\1", _whole(QUOTED.sub(r"\1", annotation), *more, **options)
        )
    if isinstance(annotation, tuple):  # the parameters that stand for a ParamSpec
        return f"[{_listed(annotation, *more, **options)}]"
    if isinstance(annotation, ParamSpecArgs | ParamSpecKwargs):
        return str(annotation).lstrip("_")
    if hasattr(annotation, "__bound__") and hasattr(annotation, "__name__"):
        return VARIABLE.sub(r"\1", annotation.__name__)
    cls = get_origin(annotation) or annotation
    name = "" if isinstance(cls, list) else PUBLIC.get(cls, "")
    if name:
        arguments = tuple([each for each in get_args(annotation) if each != Shape])
        listed = f"[{_listed(arguments, *more, **options)}]" if arguments else ""
        return f"~{name}{listed}"
    if get_origin(annotation) is np.ndarray:
        element = get_args(get_args(annotation)[1])[0]
        return f"NDArray[{written(element, *more, **options)}]"
    return _whole(annotation, *more, **options)


def _listed(annotations: tuple[Any, ...], /, *more: Any, **options: Any) -> str:
    return ", ".join([written(each, *more, **options) for each in annotations])


def plain(
    _app: Any,
    _what: str,
    name: str,
    _member: Any,
    _options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write the defaults that a factory makes as its calls, `costs=CostModel()`, and
    the type variables of annotations that autodoc could not evaluate."""
    if signature and "<factory>" in signature:
        for field in dataclasses.fields(getattr(dagpu, name.split(".")[1])):
            if field.init and field.default_factory is not dataclasses.MISSING:
                call = f"{field.default_factory.__name__}()"
                signature = signature.replace("<factory>", call, 1)
    return without_underscores(signature), without_underscores(returns)


def without_underscores(text: str | None) -> str | None:
    """Return the text with type variables as the reference writes them."""
    return text and VARIABLE.sub(r"\1", text)


def hide_members(
    _app: Any, _what: str, name: str, member: Any, _skip: bool, _options: Any
) -> bool | None:
    """Leave out the constructors and methods that users do not call."""
    if name == "__new__" or member in OURS_ALONE:
        return True
    shown = [cls.__init__ for cls in MADE_BY_USERS]
    return True if name == "__init__" and member not in shown else None


def public_bases(
    _app: Any, _name: str, _member: Any, _options: Any, bases: list[Any]
) -> None:
    """Name the bases of a class by their public names."""
    bases[:] = [f":py:class:`~{PUBLIC[b]}`" if b in PUBLIC else b for b in bases]


def show_parameters(_app: Any, page: nodes.document) -> None:
    """Write the type parameters behind the names of generic classes, as autodoc does
    not."""
    classes = {name: cls for cls, name in PUBLIC.items()}
    for entry in page.findall(addnodes.desc):
        if entry["objtype"] != "class":
            continue
        for signature in entry.findall(addnodes.desc_signature):
            cls = classes.get(f"{signature['module']}.{signature['fullname']}")
            names = [each.__name__ for each in getattr(cls, "__parameters__", ())]
            if names:
                (name,) = signature.findall(addnodes.desc_name)
                bare = [each.strip("_").partition("_")[0] for each in names]
                behind = name.parent.index(name) + 1
                name.parent.insert(behind, nodes.Text(f"[{', '.join(bare)}]"))


def fold_overloads(_app: Any, page: nodes.document) -> None:
    """Show one of several equal signatures, and fold all but the first of three."""
    for entry in page.findall(addnodes.desc):
        texts: dict[str, addnodes.desc_signature] = {}
        every = [s for s in entry.children if isinstance(s, addnodes.desc_signature)]
        for signature in every:
            if texts.setdefault(shown(signature), signature) is not signature:
                entry.remove(signature)
        if len(texts) < 3:
            continue
        others = list(texts.items())[1:]
        for _, signature in others:
            entry.remove(signature)
        text = "\n".join([text for text, _ in others])
        summary = f"<summary>{len(others)} more signatures</summary>"
        opening = nodes.raw("", f'<details class="overloads">{summary}', format="html")
        body = nodes.literal_block(text, text, language="python")
        content = next(iter(entry.findall(addnodes.desc_content)))
        content[:0] = [opening, body, nodes.raw("", "</details>", format="html")]


def shown(signature: addnodes.desc_signature) -> str:
    """Return the text of a signature as a page shows it. Sphinx keeps two texts of the
    name of a type: the short one, and the whole one for names that lead nowhere."""
    copy = signature.deepcopy()
    for text in list(copy.findall(addnodes.pending_xref_condition)):
        if text["condition"] == "*":
            text.parent.remove(text)
    return " ".join(copy.astext().split())


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    for module in (sphinx_typing, sphinx_inspect):
        module.stringify_annotation = written
    for cls, name in PUBLIC.items():  # else autodoc takes it for an alias
        cls.__name__ = cls.__qualname__ = name.rpartition(".")[2]
    app.connect("autodoc-process-signature", plain)
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-skip-member", hide_members)
    app.connect("doctree-read", show_parameters)
    app.connect("doctree-read", fold_overloads)
    return {"parallel_read_safe": True}
