"""The flow rules: a data-flow analysis of the handles that may have moved and of the borrows that are alive.

`kinds` derives from a type what its values can do. `builder` and `lower_*` turn a function's syntax tree into the
control-flow graph of `graph`; `closures` and `lower_functions` summarise the effects of calling another function.
`liveness` and `state` compute the facts at each point of the graph. `judge` walks the graph once more and reports the
errors; `analysis` runs all of these steps for a module. This package uses neither hooks nor mypy's checker: its input
is a syntax tree and the types of its expressions.
"""
