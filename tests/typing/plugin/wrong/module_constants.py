"""Shapes and tiles that are constants of the module, without Final."""

from dagpu import zeros

N, TILE = 1024, (256,)
ROWS = 10
SHAPE = (ROWS, ROWS + 2)
CUT = (4,)


def tile_does_not_divide() -> None:
    zeros((ROWS,)).partition(CUT).sync()  # E: dagpu-output-partition


def of_an_unpacked_constant() -> None:
    zeros((N + 1,)).partition(TILE).sync()  # E: dagpu-output-partition


def of_a_constant_made_of_another() -> None:
    zeros(SHAPE).partition((5, 5)).sync()  # E: dagpu-output-partition


def of_an_item() -> None:
    zeros((SHAPE[1],)).partition(CUT).sync()
    zeros((SHAPE[0],)).partition(CUT).sync()  # E: dagpu-output-partition


def in_a_closure() -> None:
    def cut() -> None:
        zeros((ROWS,)).partition(CUT).sync()  # E: dagpu-output-partition

    cut()


DECLARED: tuple[int]
DECLARED = (10,)


def declared_before() -> None:
    zeros(DECLARED).partition(CUT).sync()  # E: dagpu-output-partition
