"""The flow rules: a data-flow analysis of the handles that may have moved and of the borrows that are alive.

`typing/type_facts` derives from a type what its values can do. `graph_builder` and `lower/` turn a function's syntax
tree into the graph of `control_flow`; `effects` and `lower/lower_functions` summarise the effects of calling another
function. `liveness` and `dataflow` compute the facts at each point of the graph. `reporting` walks the graph once more
and reports the errors, with those of `op_uses`; `analysis` runs all of these steps for a module.
This package uses neither hooks nor mypy's checker: its input is a syntax tree and the types of its expressions.
"""
