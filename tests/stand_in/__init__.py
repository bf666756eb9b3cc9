"""A libcuda that only writes down what it gets: so tests see, without a GPU and without a driver, that PyCUDA and
cuda.bindings hand on what we mean."""
