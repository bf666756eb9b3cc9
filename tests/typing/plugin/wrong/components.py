"""Components of tuples that are used again under another spelling: index, name, unpacking, star argument."""

from typing import NamedTuple

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


class Two(NamedTuple):
    """Two tensors."""

    first: Tensor[f32]
    second: Tensor[f32]


def use(a: Tensor[f32], b: Tensor[f32]) -> None:
    eat(a)
    eat(b)


def index_then_negative() -> None:
    pair = (vector(), vector())
    eat(pair[1])
    eat(pair[-1])  # E: dagpu-use-after-move


def negative_then_index() -> None:
    pair = (vector(), vector())
    eat(pair[-2])
    print(pair[0].shape)  # E: dagpu-use-after-move


def index_then_unpack() -> None:
    pair = (vector(), vector())
    eat(pair[0])
    a, b = pair
    print(b.shape)
    print(a.shape)  # E: dagpu-use-after-move


def unpack_then_index() -> None:
    pair = (vector(), vector())
    a, b = pair
    eat(a)
    print(b.shape)
    print(pair[0].shape)  # E: dagpu-use-after-move


def attribute_then_index() -> None:
    two = Two(vector(), vector())
    eat(two.first)
    print(two[1].shape)
    print(two[0].shape)  # E: dagpu-use-after-move


def index_then_attribute() -> None:
    two = Two(vector(), vector())
    eat(two[1])
    print(two.first.shape)
    print(two.second.shape)  # E: dagpu-use-after-move


def neg_index_then_attribute() -> None:
    two = Two(vector(), vector())
    eat(two[-1])
    print(two.first.shape)
    print(two.second.shape)  # E: dagpu-use-after-move


def attribute_then_unpack() -> None:
    two = Two(vector(), vector())
    eat(two.first)
    a, b = two
    print(b.shape)
    print(a.shape)  # E: dagpu-use-after-move


def unpack_then_attribute() -> None:
    two = Two(vector(), vector())
    a, b = two
    eat(b)
    print(a.shape, two.first.shape)
    print(two.second.shape)  # E: dagpu-use-after-move


def unpack_twice() -> None:
    two = Two(vector(), vector())
    a, b = two
    c, d = two
    eat(b)
    print(a.shape, c.shape)
    print(d.shape)  # E: dagpu-use-after-move


def into_then_original() -> None:
    a, b = vector(), vector()
    pair = (a, b)
    eat(pair[0])
    print(a.shape)  # E: dagpu-use-after-move


def star_argument() -> None:
    pair = (vector(), vector())
    use(*pair)
    print(pair[0].shape)  # E: dagpu-use-after-move


def star_argument_then_unpack() -> None:
    pair = (vector(), vector())
    use(*pair)
    a, b = pair
    print(a.shape, b.shape)  # E: dagpu-use-after-move # E: dagpu-use-after-move


def star_argument_twice() -> None:
    pair = (vector(), vector())
    use(*pair)
    use(*pair)  # E: dagpu-use-after-move # E: dagpu-use-after-move


def star_argument_of_named() -> None:
    two = Two(vector(), vector())
    use(*two)
    print(two.second.shape)  # E: dagpu-use-after-move


def star_argument_of_list() -> None:
    tensors = [vector(), vector()]
    use(*tensors)
    print(tensors[0].shape)  # E: dagpu-use-after-move


def star_argument_of_dict() -> None:
    tensors = {"a": vector(), "b": vector()}
    use(**tensors)
    print(tensors["a"].shape)  # E: dagpu-use-after-move


def star_argument_after_moved() -> None:
    a, b = vector(), vector()
    eat(a)
    pair = (a, b)  # E: dagpu-use-after-move
    use(*pair)


def star_argument_moved_component() -> None:
    pair = (vector(), vector())
    eat(pair[1])
    use(*pair)  # E: dagpu-use-after-move
