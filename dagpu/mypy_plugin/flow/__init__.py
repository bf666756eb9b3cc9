"""The flow rules: who may have moved what by when, and which borrows are alive.

`kinds` reads off a type what a value of it can do. `builder` and `lower_*` turn a function's syntax tree into the
small graph of `graph`; `closures` and `lower_functions` say what calling another function does. `liveness` and `state`
compute what holds at each point of it. `judge` walks it once more and says what is wrong; `analysis` does all of that
for a module. Nothing here knows of hooks or of mypy's checker: the input is a syntax tree and the types of its
expressions.
"""
