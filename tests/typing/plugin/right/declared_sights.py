"""Declarations that fit, and such as the run time alone can judge."""

from typing import Literal

import pytest

from dagpu import Along, Around, Columns, Here, In, KernelArgumentError, Out, Rows, f32, kernel

TWO = "__global__ void k(Tile<float, 2> y, View<const float, 2> a, View<const float, 1> b) {}"
HIDDEN = f"{TWO}"


def own_place() -> None:
    @kernel(cuda=TWO, sees={"a": Here(), "b": (None,)})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def margins() -> None:
    @kernel(cuda=TWO, sees={"a": Around(0, 3), "b": (Along(1, 2, 0),)})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def products() -> None:
    @kernel(cuda=TWO, sees={"a": Rows(), "b": Columns()})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def transposed() -> None:
    @kernel(cuda=TWO, sees={"a": (Along(1), Along(0, before=1))})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def nothing_declared() -> None:
    @kernel(cuda=TWO, sees=None)
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def an_expected_error() -> None:
    with pytest.raises(KernelArgumentError):

        @kernel(cuda=TWO, sees={"a": Around(1)})
        def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def margins_of_a_parameter(reach: int = 2, axis: Literal[0, 1] = 1) -> None:
    @kernel(cuda=TWO, sees={"a": Around(reach, reach + 1), "b": (Along(axis, reach),)})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def ranks_that_no_literal_shows() -> None:
    @kernel(cuda=HIDDEN, sees={"a": Around(1, 1), "b": (Along(1),)})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def several_margins_at_once() -> None:
    margins = (1, 2)

    @kernel(cuda=TWO, sees={"a": Around(*margins)})
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
