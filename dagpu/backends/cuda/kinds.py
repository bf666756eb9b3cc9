"""The kinds of action that a run of a plan is made of."""

from enum import IntEnum


class Kind(IntEnum):
    """What an action is. They are told apart thousands of times for each run, hence numbers."""

    LAUNCH = 0
    RECORD = 1
    WAIT = 2
    DO = 3
    HOST = 4
    """As `DO`, but it may take long: a `HostCall`."""
    MARK = 5
    """The lane has got many instructions: see that its queue is not full."""
    SWITCH = 6
    """What follows is on another device."""
