"""What tests/test_devices.py says of memory, again on the GPU."""

from tests.test_devices import (  # noqa: F401  # collected from here
    test_a_runs_memory_is_returned,
    test_a_shared_op_holds_its_value_as_long_as_it_lives,
    test_arrays_from_and_to_the_host_are_copies_that_die,
    test_host_arrays_die_when_the_last_handle_does,
    test_memory_info_is_free_and_total,
    test_memory_used_counts_what_handles_hold,
)
