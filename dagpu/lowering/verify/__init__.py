"""The verifier: the proof that a plan has no data race, no use after free and no needless wait."""
