"""One run of a plan on CUDA devices: start, submission, wake-up, completion, timing."""
