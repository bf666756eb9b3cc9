"""The rules that need a whole function: two lattices over its control-flow graph, solved by one worklist.

`statements`, `expressions`, `calls` and their neighbours turn a function's syntax tree into the graph of `graph`, by
the `builder`; `effects` summarises what calling another function does. The first lattice is `ownership`: the handles
that may have moved, and the borrows that are alive; `reporting` walks the graph once more and reports the mistakes. The
second one is `known`: the values that hold on every way, of which `value_checks` checks tiles, ranks and parts.
`solver` has the worklist of both, and of liveness. This package uses neither hooks nor mypy's checker: its input is a
syntax tree and the types of its expressions.
"""
