"""The plans of the updates of one stage, and the tiles that they run."""
