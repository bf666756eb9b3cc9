"""What runs on a worker: a part, with the values that it takes and those that it gives."""
