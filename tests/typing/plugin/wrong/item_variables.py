"""Items at an index that a variable has, which are used again while it has that value."""

# ruff: noqa: PLC0206  # the index is the form that is checked

from tests.typing.plugin.kernels import eat, vector


def same_index() -> None:
    ts = [vector(), vector()]
    i = 0
    eat(ts[i])
    eat(ts[i])  # E: dagpu-use-after-move


def same_index_in_a_round() -> None:
    ts = [vector(), vector()]
    for i in range(2):
        eat(ts[i])
        print(ts[i].shape)  # E: dagpu-use-after-move


def same_key_in_a_round() -> None:
    ts = {"a": vector()}
    for k in ts:
        eat(ts[k])
        print(ts[k].shape)  # E: dagpu-use-after-move
