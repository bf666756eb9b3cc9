"""Items of lists of a known length that are counted from the other end when they are used again."""

from tests.typing.plugin.kernels import eat, vector


def comprehension_then_loop() -> None:
    ts = [vector() for _ in range(2)]
    eat(ts[-1])
    for t in ts:
        print(t.shape)  # E: dagpu-use-after-move


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
