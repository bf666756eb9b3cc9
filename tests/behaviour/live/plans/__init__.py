"""Which plans updates take: their own, those of larger changes, and those whose graphs decide cutoffs."""
