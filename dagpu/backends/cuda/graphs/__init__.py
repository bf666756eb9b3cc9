"""Plans as CUDA graphs: graph nodes, executable graphs that runs borrow, captured graphs with memory of their own."""
