"""Sources, which are inputs that change, and cutoffs: the ops from which a feed computes what must run again."""
