"""Products of matrices, dense, contracted by subscripts, and sparse; and factorisations of matrices."""
