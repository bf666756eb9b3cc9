"""The first program: divide the columns of a matrix by their norms, then find the five
largest elements of each."""

import numpy as np

from dagpu import array, expr, f32, from_host


def main() -> None:
    matrix = np.random.default_rng(7).standard_normal((1000, 4)).astype(f32)
    scaled = expr(f32, f32)(lambda x, norm: x / norm)
    x = from_host(matrix).sync().share()
    values, rows = array.topk(scaled(x, array.norm(x, axis=0)), 5, axis=0).sync()
    largest, places = values.to_host().sync(), rows.to_host().sync()
    for column, (row, value) in enumerate(zip(places[0], largest[0], strict=True)):
        print(f"column {column}: the largest element is {value:.4f}, in row {row}")

    expected = matrix / np.linalg.norm(matrix, axis=0)
    assert np.array_equal(places, np.argsort(-expected, axis=0, kind="stable")[:5])
    assert np.allclose(largest, np.sort(expected, axis=0)[:-6:-1], rtol=1e-5)


if __name__ == "__main__":
    main()
