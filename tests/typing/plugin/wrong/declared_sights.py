"""A kernel declares to see an input in a way that does not fit the ranks of the input and of its first output."""

from typing import Final

from dagpu import Along, Around, Columns, Here, In, Out, Rows, f32, kernel

TWO = "__global__ void k(Tile<float, 2> y, View<const float, 2> a, View<const float, 1> b) {}"
FAR: Final = -1


def here_of_another_rank() -> None:
    @kernel(cuda=TWO, sees={"a": Here(), "b": Here()})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def around_of_another_rank() -> None:
    @kernel(
        cuda=TWO,
        sees={
            "a": Around(1, 1),
            "b": Around(1),  # E: dagpu-sees
        },
    )
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def too_few_margins() -> None:
    @kernel(cuda=TWO, sees={"a": Around(1)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def negative_margin() -> None:
    @kernel(cuda=TWO, sees={"a": Around(1, -1)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def negative_margin_by_a_constant() -> None:
    @kernel(cuda=TWO, sees={"a": Around(FAR, 0)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def too_many_parts() -> None:
    @kernel(cuda=TWO, sees={"b": (Along(0), None)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def too_few_parts() -> None:
    @kernel(cuda=TWO, sees={"a": (Along(0),)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def no_such_axis() -> None:
    @kernel(cuda=TWO, sees={"a": (Along(0), Along(2))})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def axis_counted_from_the_end() -> None:
    @kernel(cuda=TWO, sees={"b": (Along(-1),)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def negative_margin_of_a_part() -> None:
    @kernel(cuda=TWO, sees={"b": (Along(0, after=-2),)})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def name_of_an_output() -> None:
    @kernel(cuda=TWO, sees={"y": Here(), "a": Rows()})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def name_of_nothing() -> None:
    @kernel(cuda=TWO, sees={"a": Columns(), "c": Rows()})  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def through_a_variable() -> None:
    sees = {"a": Around(3)}

    @kernel(cuda=TWO, sees=sees)  # E: dagpu-sees
    def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
