"""The reactive layer, above the runtime: values that follow each other, and the runs that compute them."""
