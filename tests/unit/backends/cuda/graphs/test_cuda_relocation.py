"""Addresses in kernel parameters: one assignment for all of a base writes what single writes do."""

from struct import Struct

from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda.commands.command_list import MANY, LaunchParameters, Relocations

Place = tuple[int, int, int]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[bytes], list[list[Place]]]:
    """The parameters of some launches, and disjoint places in them for the addresses of each base."""
    texts = draw(
        st.lists(st.integers(1, 5).flatmap(lambda n: st.binary(min_size=8 * n, max_size=8 * n + 7)), max_size=80)
    )
    words = [(launch, at) for launch, text in enumerate(texts) for at in range(0, len(text) - 7, 8)]
    bases = draw(st.integers(1, 3))
    places: list[list[Place]] = [[] for _ in range(bases)]
    shifted = draw(st.booleans())  # an address that is not at a whole word
    for launch, at in words:
        if draw(st.integers(0, 3)):
            moved = at + 1 if shifted and at + 16 > len(texts[launch]) >= at + 9 else at
            places[draw(st.integers(0, bases - 1))].append((launch, moved, draw(st.integers(0, 1 << 40))))
    return texts, places


@given(plans(), st.lists(st.lists(st.integers(0, 1 << 47), min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_packed_copy_is_written_like_its_original(
    plan: tuple[list[bytes], list[list[Place]]], runs: list[list[int]]
) -> None:
    """The same bytes, and the same sources that have changed, run after run."""
    texts, places = plan
    single = LaunchParameters([bytearray(text) for text in texts], Relocations(places))
    packed = single.copy()
    for bases in runs:
        given_bases = bases[: len(places)]
        assert packed.relocate(given_bases, []) == single.relocate(given_bases, [])
        assert [bytes(text) for text in packed.texts] == [bytes(text) for text in single.texts]


def test_each_address_is_its_base_and_its_distance() -> None:
    """An original and its copy give `MANY` addresses of one base, and fewer of another, their values."""
    places = [[(launch, 0, launch) for launch in range(MANY)], [(launch, 8, 1) for launch in range(MANY - 1)]]
    single = LaunchParameters([bytearray(16) for _ in range(MANY)], Relocations(places))
    packed = single.copy()
    for parameters in (single, packed):
        parameters.relocate([4096, 8192], [])
    assert [*map(bytes, packed.texts)] == [*map(bytes, single.texts)]
    assert int.from_bytes(packed.texts[3][:8], "little") == 4099


@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from("fffd")), min_size=MANY - 1, max_size=2 * MANY),
    st.lists(st.floats(width=32), min_size=1, max_size=4),
)
def test_the_number_of_a_cell_is_written_into_all_launches(places: list[tuple[int, str]], numbers: list[float]) -> None:
    """The same bytes as by single writes, where one launch converts the number in another way or begins it at an odd
    byte too; and the number counts as changed once."""
    converts = {kind: Struct(f"<{kind}").pack for kind in "fd"}
    cells = {0: [(launch, at, converts[kind]) for launch, (at, kind) in enumerate(places)]}
    packed = LaunchParameters([bytearray(16) for _ in places], Relocations([], cells)).copy()
    for number in numbers:
        assert packed.relocate([], [number]) == [0]
        assert packed.relocate([], [number]) == []
        wanted = [bytes(at) + converts[kind](number) for at, kind in places]
        assert [bytes(text[: len(want)]) for text, want in zip(packed.texts, wanted, strict=True)] == wanted


def test_a_number_of_many_launches_is_written_by_one_assignment() -> None:
    """The function that converts it is called once for all launches of one kernel."""
    calls: list[float] = []

    def convert(number: float) -> bytes:
        calls.append(number)
        return Struct("<f").pack(number)

    packed = LaunchParameters(
        [bytearray(8) for _ in range(MANY)], Relocations([], {0: [(launch, 4, convert) for launch in range(MANY)]})
    ).copy()
    packed.relocate([], [0.5])
    calls.clear()
    packed.relocate([], [1.5])
    assert calls == [1.5]
    assert {bytes(text) for text in packed.texts} == {bytes(4) + Struct("<f").pack(1.5)}
