"""Plans as CUDA graphs: nodes, executable graphs that runs borrow, captured graphs with memory of their own."""
