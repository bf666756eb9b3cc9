"""Addresses in kernel parameters: one assignment for all of a base writes what single writes do."""

from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda.commands.relocation import MANY, LaunchParameters, Relocations

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
