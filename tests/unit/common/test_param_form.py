"""The forms of kernel parameters: each layer has an answer for each of them."""

import pickle
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

import dagpu
from dagpu.testing import Form

PACKAGE = Path(dagpu.__file__).parent


def tables() -> Iterator[tuple[str, Mapping[object, object]]]:
    """Yield the tables by form of the modules that name forms, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "Form." not in path.read_text(encoding="utf-8") or "mypy_plugin" in path.parts:
            continue
        name = ".".join(("dagpu", *path.relative_to(PACKAGE).with_suffix("").parts))
        for variable, value in vars(import_module(name)).items():
            if isinstance(value, Mapping) and any(isinstance(key, Form) for key in value):
                yield f"{name}.{variable}", value


def test_each_table_by_form_has_every_form() -> None:
    """A form that a table lacks would be a KeyError in the first call of a kernel that has it."""
    found = dict(tables())
    assert len(found) >= 2
    assert {place: set(Form) - set(table) for place, table in found.items() if set(table) != set(Form)} == {}


@pytest.mark.parametrize("form", Form)
def test_a_pickle_of_a_form_is_its_name(form: Form) -> None:
    """A cluster's parts hold parameters, and workers ask by identity. What a member answers is not in the pickle."""
    text = pickle.dumps(form)
    assert pickle.loads(text) is form
    assert form.noun.encode() not in text
