"""Items of lists of a known length that are counted from the other end when they are used again."""

from tests.typing.plugin.kernels import eat, vector


def index_then_negative() -> None:
    ts = [vector(), vector()]
    eat(ts[1])
    eat(ts[-1])  # E: dagpu-use-after-move


def first_then_negative() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[0])
    eat(ts[-3])  # E: dagpu-use-after-move


def comprehension_then_loop() -> None:
    ts = [vector() for _ in range(2)]
    eat(ts[-1])
    for t in ts:
        print(t.shape)  # E: dagpu-use-after-move


def negative_then_unpacked() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[-1])
    a, b, c = ts
    print(a.shape, b.shape)
    print(c.shape)  # E: dagpu-use-after-move


def starred_then_negative() -> None:
    ts = [vector(), vector(), vector()]
    *_, last = ts
    eat(last)
    print(ts[-1].shape)  # E: dagpu-use-after-move


def negative_then_starred() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[-1])
    *_, last = ts
    print(last.shape)  # E: dagpu-use-after-move


def negative_then_pattern() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[-1])
    match ts:
        case [*_, last]:
            print(last.shape)  # E: dagpu-use-after-move
        case _:
            pass


def single_item() -> None:
    ts = [vector()]
    eat(ts[0])
    print(ts[-1].shape)  # E: dagpu-use-after-move


def named_from_the_end() -> None:
    ts = [vector(), vector()]
    t = ts[-1]
    eat(t)
    print(ts[1].shape)  # E: dagpu-use-after-move
