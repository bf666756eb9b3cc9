"""The plans of the updates of one stage: by what has changed, and with lists of tiles."""
