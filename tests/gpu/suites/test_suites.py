"""The ordinary suite again, on the GPU: the tests of each module in `SUITES` are collected here once more."""

from typing import Final

from tests.behaviour.arrays import (
    test_fourier_transforms,
    test_matrix_products,
    test_movement_calls,
    test_sorting_calls,
)
from tests.behaviour.errors import test_errors
from tests.behaviour.flows import test_flow_cancellation, test_flow_laws
from tests.behaviour.graphs import (
    test_captured_shared,
    test_graph_inputs,
    test_graph_launches,
    test_graph_machine,
    test_graph_ownership,
    test_graph_scopes,
)
from tests.behaviour.laws import (
    test_copies,
    test_laws,
    test_named_dags,
    test_once,
    test_once_concurrently,
    test_random_dags,
    test_seeds,
)
from tests.behaviour.pipelines import (
    test_pipeline_aliasing,
    test_pipeline_calls,
    test_pipeline_failures,
    test_pipeline_laws,
    test_pipeline_memory,
)
from tests.behaviour.reuse import test_guilty, test_plan_cache, test_reuse, test_reused_arguments
from tests.behaviour.runs import (
    test_placement,
    test_run_cancellation,
    test_run_failures,
    test_run_locks,
    test_running,
    test_spawn,
)
from tests.gpu.suites.again import Suite
from tests.gpu.suites.page_locked_marks import marks_of_the_gpu
from tests.project.examples import test_decode, test_digits, test_examples, test_showpieces
from tests.unit.handles import (
    test_handle_borrows,
    test_handle_moves,
    test_handle_names,
    test_handle_shapes,
    test_reborrow,
)
from tests.unit.kernels.arrays import test_masks
from tests.unit.ops import test_ops_memory, test_unzip_stages
from tests.unit.runtime import test_devices
from tests.unit.tracing.arguments import test_structure, test_structure_equality

OF_MEMORY: Final = frozenset(
    {
        "test_a_runs_memory_is_returned",
        "test_a_shared_op_holds_its_value_as_long_as_it_lives",
        "test_arrays_from_and_to_the_host_are_copies_that_die",
        "test_host_arrays_die_when_the_last_handle_does",
        "test_memory_info_is_free_and_total",
        "test_memory_used_counts_what_handles_hold",
    }
)
"""The tests of devices that are about memory."""
OF_A_DEVICE: Final = frozenset(
    {
        "test_a_mask_with_gaps_is_read_as_any_other",
        "test_any_byte_but_zero_is_true",
        "test_converted_masks_are_0_and_1",
    }
)
"""The tests of masks that run where the current device is."""
MARKED: Final = {"marks_of_the_gpu": marks_of_the_gpu}
"""Kernels of these suites leave marks, on a GPU in page-locked memory."""

SUITES: Final = (
    Suite(test_captured_shared, fixtures=MARKED),
    Suite(test_copies),
    Suite(test_decode),
    Suite(test_devices, only=OF_MEMORY),
    Suite(test_digits),
    Suite(test_errors),
    Suite(test_examples),
    Suite(test_flow_cancellation),
    Suite(test_flow_laws),
    Suite(test_graph_inputs),
    Suite(test_fourier_transforms),
    Suite(test_matrix_products),
    Suite(test_sorting_calls),
    Suite(test_graph_launches),
    Suite(test_graph_machine),
    Suite(test_graph_ownership),
    Suite(test_graph_scopes),
    Suite(test_guilty),
    Suite(test_handle_borrows),
    Suite(test_handle_moves),
    Suite(test_handle_names),
    Suite(test_handle_shapes),
    Suite(test_laws),
    Suite(test_masks, only=OF_A_DEVICE),
    Suite(test_movement_calls),
    Suite(test_named_dags),
    Suite(test_once, fixtures=MARKED),
    Suite(test_once_concurrently, fixtures=MARKED),
    Suite(test_ops_memory),
    Suite(test_pipeline_aliasing),
    Suite(test_pipeline_calls),
    Suite(test_pipeline_failures),
    Suite(test_pipeline_laws),
    Suite(test_pipeline_memory),
    Suite(test_placement),
    Suite(test_plan_cache),
    Suite(test_random_dags),
    Suite(test_reborrow),
    Suite(test_reuse),
    Suite(test_reused_arguments),
    Suite(test_run_cancellation),
    Suite(test_run_failures),
    Suite(test_run_locks),
    Suite(test_running),
    Suite(test_seeds),
    Suite(test_showpieces),
    Suite(test_spawn),
    Suite(test_structure),
    Suite(test_structure_equality),
    Suite(test_unzip_stages, fixtures=MARKED),
)
