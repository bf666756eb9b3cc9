"""Ops that a continuation of `then` returns, each once in a run."""

from dagpu import ones, zeros, zip_ops


def returned_once() -> None:
    op = zeros((8,))
    ones((8,)).then(lambda _: op).sync()


def another_one_returned() -> None:
    op = zeros((8,))
    other = ones((8,))
    zip_ops(op, zeros((8,)).then(lambda _: other)).sync()


def shared() -> None:
    op = zeros((8,)).shared()
    zip_ops(op, ones((8,)).then(lambda _: op)).sync()


def in_two_runs() -> None:
    op = zeros((8,))
    op.sync()
    ones((8,)).then(lambda _: op).sync()


def only_looked_at() -> None:
    op = zeros((8,))
    other = op.map(lambda t: t)
    ones((8,)).then(lambda _: (print(repr(op)), other)[1]).sync()
