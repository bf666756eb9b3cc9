"""Parts that several backends share: streams for lanes, failures, host instructions, measuring."""
