"""From mypy's syntax tree to the control-flow graph of the flow rules."""
