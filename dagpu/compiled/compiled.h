/* What the parts of the compiled reader share.
 *
 * - table.c, rows.c: the rows of a table, and the reader of a call by these (the reference is Guard.read).
 * - gate.c: locks the memory of a call and moves its handles, and releases the locks (begin_run and end_run).
 * - nodes.c: the nodes of a graph of kernels, and the update of those that changed (GraphExec.update_nodes).
 * - boarding.c: takes the memory, the graph and the stream of a run (idle_graph_launch).
 * - flight.c: launches a graph, or copies an array, and waits for it (idle_graph_launch, launch_captured, copy_launch).
 * - pool.c: takes a block of device memory (Pool.take).
 * - launched.c: a launch that is under way, as a `Run` (CudaRun).
 * - serving.c, calls.c: the plan that serves an op, and the whole of a call of sync() by these.
 * - landing.c, awaited.c: a call in a task, from its launch to its result, and the steps in which a task makes it.
 * - updates.c, feed_next.c: the updates of a feed, from the sources that have changed to the next value.
 * - pipeline_op.c: the ops that a call of a pipeline and a launch of a captured graph return.
 * - section.c: defers a Ctrl-C, and refuses runs, where a call needs code of Python (begin_section).
 * - module.c: what Python gives to them: classes with the places of their slots, and objects.
 *
 * Each part does what its reference in Python does, by the same data, and refuses what it does not know: then the
 * reference decides. A refusal has no effect. From the first effect to the launch no code of Python runs, so no signal
 * handler, no finaliser and no other thread comes in between. What may run code of Python comes before:
 *
 * - an `==` of objects that are not numbers or texts of Python,
 * - an allocation of an object that the garbage collector tracks, which may collect (CPython 3.11),
 * - the last release of an object.
 */
#ifndef DAGPU_COMPILED_H
#define DAGPU_COMPILED_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

/* ---- what Python gives (module.c) ---------------------------------------------------------------------------- */

typedef struct {
    /* rows */
    PyObject *handle_base, *handle_state, *storage, *no_graph, *argument_error, *ndarray, *same_element, *lock,
        *cut_matches;
    /* gate */
    PyObject *acquire, *release, *taken, *new_handle, *tensor, *tensor_mut, *loaded_plan;
    /* flight */
    PyObject *memory_block, *graph_exec, *cuda_stream, *launch_parameters, *inside, *exit_guard, *recorder, *long_spin, *completed;
    /* calls */
    PyObject *then, *value, *pure, *graph_launch, *device_op, *direct_call, *settings, *interpreter_class, *interpreter;
    PyObject *thread_local_, *outside, *critical, *block, *async_library, *started, *origins, *ours, *is_ours,
        *chosen_device, *chosen_mesh;
    PyObject *lookup, *variables, *keys, *plans, *finish, *miss, *get_handler, *set_handler, *deferred, *end_section,
        *without_frames, *shared_tensor, *thread_state, *same_value, *tuple_of, *leaf_memory, *new_tensor,
        *first_use, *composite_of, *composite, *tensor_ref;
    /* awaited */
    PyObject *checkpoint_if_cancelled, *landed, *turn;
    /* updates */
    PyObject *history, *version, *live_input, *holders, *target_memory, *shared_target, *clock, *snapshot, *perf_counter,
        *stats, *observed, *feed, *own_containers;
    /* pool */
    PyObject *pool, *reference, *reference_queue;
} Known;
extern Known known;

typedef struct {
    Py_ssize_t handle_state, handle_moved;                                        /* HandleBase */
    Py_ssize_t state_kind, state_storage, state_layout, state_origin, state_lender, state_loan, state_holders;
    Py_ssize_t storage_device, storage_nbytes, storage_memory, storage_lock, storage_graph, storage_lost,
        storage_shares;
    Py_ssize_t plan_runs, plan_direct, plan_graph_from, plan_graph_ready, plan_compiled, plan_settings, plan_spin,
        plan_pace, plan_place, plan_prepared;
    Py_ssize_t lock_writer, lock_readers, lock_holder;                             /* Lock */
    Py_ssize_t thread_where, thread_hold, thread_signals; /* ThreadState */
    Py_ssize_t block_address, block_nbytes, block_size;                           /* MemoryBlock */
    Py_ssize_t pool_lock, pool_idle, pool_sizes, pool_used, pool_dropped, pool_visited, pool_parked, pool_mapped; /* Pool */
    Py_ssize_t queue_gone, queue_append, queue_alive, reference_resource;         /* ReferenceQueue, Reference */
    Py_ssize_t graph_raw, graph_parameters, graph_arenas, graph_nodes;            /* GraphExec */
    Py_ssize_t stream_raw, stream_submitting, stream_marks; /* CudaStream */
    Py_ssize_t parameters_bases, parameters_numbers;                              /* LaunchParameters */
    Py_ssize_t guard_begun;                                                       /* ExitGuard */
    Py_ssize_t then_source, then_f, then_origin, then_plans;                      /* Then */
    Py_ssize_t value_content, value_origin, value_plans;                          /* Value */
    Py_ssize_t pure_plans;                                                        /* Pure */
    Py_ssize_t launch_captured, launch_origin;                                    /* GraphLaunch */
    Py_ssize_t direct_read, direct_build, direct_attaches, direct_on_failure;     /* DirectCall */
    Py_ssize_t settings_spin, settings_direct;                                    /* Settings */
    Py_ssize_t same_value, tuple_parts;                                           /* SameValue, TupleOf */
    Py_ssize_t leaf_index, leaf_kind, leaf_layout;                                /* LeafMemory */
    Py_ssize_t new_device, new_nbytes, new_buffer, new_kind, new_layout, new_origin; /* NewTensor */
    Py_ssize_t first_make;                                                        /* FirstUse */
    Py_ssize_t composite_kind, composite_of_about, composite_of_items, composite_of_own; /* CompositeOf */
    Py_ssize_t composite_about, composite_items;                                  /* Composite */
    Py_ssize_t shared_counted, shared_holders, holders_token;                     /* SharedTensor, Holders */
    Py_ssize_t history_versions;                                                  /* History */
    Py_ssize_t version_instant, version_revision, version_value, version_parts, version_written, version_since; /* Version */
    Py_ssize_t input_version, input_value;                                        /* LiveInput */
    Py_ssize_t targets_memory, targets_held, targets_elsewhere;                   /* TargetMemory */
    Py_ssize_t target_targets, target_buffer, target_layout;                      /* SharedTarget */
    Py_ssize_t stats_launched, stats_reused, stats_skipped, stats_values, stats_handed, stats_latencies, stats_left,
        stats_for_producer, stats_for_consumer;                                   /* Stats */
    Py_ssize_t feed_stage, feed_asked, feed_clock, feed_track, feed_stats;        /* Feed */
} Slots;
extern Slots slots;

/* The content of a slot, which is NULL if it is not set. The object must be of the class of the slot. */
#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* Names of attributes. A name that is made for one look-up would stay in the cache of types until another takes its place. */
extern PyObject *s_state, *s_thread, *s_origin, *s_flight, *s_live, *s_shape, *s_dtype, *zero, *one;

/* Look an attribute up, or call a method without arguments, by a name that is the same object each time. */
PyObject *attribute_named(PyObject *object, const char *name);
PyObject *call_named(PyObject *object, const char *name);

/* Set an error and return -1 unless Python has given all objects from `first` to `last`, which are neighbours in
 * `Known`. `what` is the part that needs them. */
int must_know(PyObject **first, PyObject **last, const char *what);

/* Replace the content of a slot, and return what it was: its release may run code of Python. */
static inline PyObject *exchange_slot(PyObject *object, Py_ssize_t offset, PyObject *fresh) {
    PyObject *before = SLOT(object, offset);
    SLOT(object, offset) = fresh;
    return before;
}

/* ---- the section of a call (section.c) --------------------------------------------------------------------------- */

typedef struct {
    PyObject *thread; /* the state of the thread while the section is open; NULL while it is not */
    int installed;
    PyObject *type, *value, *trace; /* the Ctrl-C that came before */
} Section;

void section_init(Section *section);
/* Open the section, unless it is open, or the call is within one. It does not fail: an error is raised at its end. */
void section_open(Section *section);
/* Close it. Return -1 with the Ctrl-C that came meanwhile, in the place of any other error. */
int section_close(Section *section);

/* ---- a call whose inputs have been read (gate.c) -------------------------------------------------------------- */

typedef struct {
    PyObject *lock;
    int exclusive;
    PyObject *holder; /* what the lock had before, until the run is over */
} LockUse;

typedef struct {
    Py_ssize_t leaf;               /* the index among the leaves */
    PyObject *handle, *state;      /* the handle, and its state as it was read */
    PyObject *fresh, *record;      /* made by `prepare`: the handle after the move, and the record of the move */
} Move;

#define FEW 16

typedef struct {
    PyObject *memory, *leaves;     /* lists: see `Reading` in dagpu.tracing.call_guard */
    Py_ssize_t n_locks, n_moves, room;
    LockUse *locks;
    Move *moves;
    LockUse few_locks[FEW];
    Move few_moves[FEW];
    int begun;                     /* true while the call holds its locks */
} Call;

void call_init(Call *call);
int call_reserve(Call *call, Py_ssize_t handles);
void call_add_lock(Call *call, PyObject *lock, int exclusive);
void call_add_move(Call *call, Py_ssize_t leaf, PyObject *handle, PyObject *state);
/* Release all that a call refers to. It holds no lock. */
void call_clear(Call *call);
/* Make the tuple that `Guard.read` returns. */
PyObject *call_as_reading(Call *call);
/* Take over what `Guard.read`, or another reader of Python, has returned. Return -1 with an error for anything else. */
int call_from_reading(Call *call, PyObject *reading);

/* ---- the rows of a table (rows.c, table.c) ---------------------------------------------------------------------- */

extern PyTypeObject RowsType;
/* Read a call. Return 1 if its inputs are those of the table, 0 if not, -1 with an error. */
int rows_read(PyObject *rows, PyObject *first, PyObject *named, Call *call);

/* ---- locks and moves (gate.c) --------------------------------------------------------------------------------- */

/* Make what a call needs for its moves. It has no effect. Return -1 with an error. */
int call_prepare(Call *call, PyObject *origin);
/* Lock the memory, move the handles, and count the run of the plan. The call must be prepared. Return 1; 0 if another run
 * is in the way, -1 with an error: nothing is done then. */
int call_begin(Call *call, PyObject *loaded, PyObject *origin);
/* Release the locks. An error that is set stays set. */
void call_end(Call *call);
/* Move the handles back. */
void call_put_back(Call *call);

PyObject *py_begin(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *py_end(PyObject *module, PyObject *reading);

/* ---- memory (pool.c) ------------------------------------------------------------------------------------------------ */

/* Take a block of `nbytes`, which occupies `size`, from a pool of device memory. Return NULL, with an error or without one,
 * if Python has to take it. */
PyObject *pool_take(PyObject *pool, PyObject *nbytes, PyObject *size, PyObject *wanted);

/* ---- a run as one launch of an idle graph (flight.c) ----------------------------------------------------------- */

extern PyTypeObject FlightType, NodesType;

/* What a run through an idle graph holds. */
typedef struct {
    PyObject *graph, *stream, *nodes, *bases, *arenas;
    Section *section; /* what is opened before code of Python runs; NULL within the section of a run of Python */
} Boarding;

typedef enum { NOT_NOW = 0, LANDED = 1, UNDER_WAY = 2, REFUSED = 3 } Outcome;

/* Take a graph, a stream and memory for a run. Code of Python may run. Return 1; 0, with nothing held, if the run must
 * be started in another way now; -1 with an error. With `quick`, only if all of the rest is done without Python. */
int flight_board(PyObject *flight, PyObject *memory, Boarding *boarding, int quick);
/* Give back what a run has taken that has not been launched. */
void flight_leave(PyObject *flight, Boarding *boarding);
/* Update the nodes, launch the graph, and wait for at most `spin` seconds, then block; 0 for no wait. No code of Python
 * runs if the graph has nodes. Return -1 with an error of Python, or an `Outcome`. For `REFUSED` see `flight_refused`. */
int flight_fly(PyObject *flight, PyObject *memory, Boarding *boarding, double spin, int *code, const char **call, int *refused);
/* Give back what a run has held that is over. */
void flight_land(PyObject *flight, Boarding *boarding);
/* Return the run of Python that goes on with a launch that is under way. It takes over what the boarding holds. */
PyObject *flight_follow(PyObject *flight, PyObject *memory, Boarding *boarding);
/* Return the run of Python that goes on after the driver has refused a call, or None if the run must be started in
 * another way. It takes over what the boarding holds. */
PyObject *flight_refused(PyObject *flight, PyObject *memory, Boarding *boarding, int code, const char *call, int refused);

#define IS_BUSY 600 /* cuda.h: CUDA_ERROR_NOT_READY */
/* Poll the stream of a run for `spin` seconds, or wait for it for ever with a negative number. Return 0 if it is idle,
 * `IS_BUSY` if it is not, the driver's code if it refuses, -1 with an error of Python. */
int flight_poll(PyObject *flight, Boarding *boarding, double spin, const char **call);
/* Return 1 for the flight of a captured graph or of a copy: it serves any run of its plan. */
int flight_serves_all(PyObject *flight);
/* Return 1 if a task may wait for the flight: the driver's call for a copy may take long. */
int flight_is_awaited(PyObject *flight);
/* Return the set of the live runs of each device, as a new tuple. */
PyObject *flight_live(PyObject *flight);
/* Drop what a run has held whose end nobody knows. */
void flight_forget(Boarding *boarding);

/* ---- a launch that is under way (launched.c) -------------------------------------------------------------------- */

/* Return the `Run` of a launch. It takes over what the boarding holds. */
PyObject *launched_run(PyObject *flight, PyObject *memory, Boarding *boarding);
/* Poll such a run for this number of seconds. Return 1 if it is over; 0 if not, and for any other run; -1 with an error. */
int launched_poll(PyObject *run, double seconds);

/* ---- whole calls (calls.c) -------------------------------------------------------------------------------------- */

PyObject *py_sync_method(PyObject *module, PyObject *args);
PyObject *py_call_method(PyObject *module, PyObject *args);
PyObject *py_await_method(PyObject *module, PyObject *args);
PyObject *py_launch_method(PyObject *module, PyObject *args);
PyObject *py_next_method(PyObject *module, PyObject *args);
PyObject *py_anext_method(PyObject *module, PyObject *args);

#endif
