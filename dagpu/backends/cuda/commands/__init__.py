"""A plan as a list of commands for the driver, and the launch parameters that change from run to run."""
