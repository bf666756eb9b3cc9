/* What the parts of a whole call share: serving.c finds the plan, calls.c runs the call, landing.c awaits it. */
#ifndef DAGPU_CALLS_H
#define DAGPU_CALLS_H
#include "compiled.h"

/* ---- the plan that serves an op (serving.c) -------------------------------------------------------------------- */

/* What `direct_call` returns. All are new references; `cache` may be NULL. */
typedef struct { PyObject *loaded, *direct, *arguments, *named, *cache; } Serving;

/* Find the plan that serves an op; see direct_call in dagpu.runtime.plan_lookup. Return 1; 0 if there is none, or Python
 * has to tell; -1 with an error. `clear_serving` releases it in each case. */
int find_serving(PyObject *op, Serving *it);
void clear_serving(Serving *it);
/* Return 1 if this thread may run an op now, as `_run_now` and `_run_in_task` ask; 0 if Python has to tell. */
int may_run(int in_task);
/* Take the settings of a run that starts now. Return 1 if it may be a direct call; 0 if Python has to tell. */
int take_settings(PyObject **settings);
/* Return the place of the innermost frame outside of dagpu, and the place where a run starts: that, or what `StartedAt`
 * has set. */
PyObject *place_now(void);
PyObject *start_now(void);
/* Return an object of a class whose slots are not set. */
PyObject *new_object(PyObject *type);

/* ---- a call under way (calls.c) ---------------------------------------------------------------------------------- */

typedef struct {
    Call call;
    Boarding boarding;
    PyObject *flight, *recipe, *cache;
    double spin;
    Section section;
} Trip;

/* The caller closes the section. */
void trip_init(Trip *trip);
/* Release the locks and all that a call refers to. Its run is over, or was not begun. */
void trip_end(Trip *trip);
/* Take a plan and its flight, if the call is one for it. */
int trip_plan(Trip *trip, Serving *it, PyObject *settings);
/* Take a plan, what makes its result, and how long to look for its end, for a run with the settings of the plan. */
int trip_choose(Trip *trip, PyObject *loaded, PyObject *recipe, double spin);
/* Read, lock, move and launch, and wait for `spin` seconds. Return -1 with an error; 0 if Python must make the call, which
 * has had no effect; else 1, with the outcome of the launch. */
int trip_begin(Trip *trip, PyObject *op, Serving *it, PyObject *origin, double spin, int *outcome, int *code,
               const char **name, int *refused);
/* The same for a call that has been read. */
int trip_launch(Trip *trip, PyObject *loaded, PyObject *origin, double spin, int *outcome, int *code, const char **name,
                int *refused);
/* Go on in Python after the driver has refused a call. Return the run; NULL with an error, or without one if the call
 * must be made in another way. */
PyObject *trip_refused(Trip *trip, int code, const char *name, int refused);
/* Return the result of a call whose run is over. */
PyObject *trip_result(Trip *trip);

/* ---- a call in a task (landing.c) -------------------------------------------------------------------------------- */

/* It owns the locks and the memory of its call, from the launch until `end`, or until it is dropped. */
typedef struct {
    PyObject_HEAD
    Trip trip;
    PyObject *run, *pace;
    PyObject *update; /* what is noted at the end of a feed's update (updates.c); NULL for an op */
} Landing;

Landing *landing_new(void);
/* Take the run of a trip that was launched, with this outcome. Return 1; 0 if the call must be made in another way, -1 with
 * an error. */
int landing_follow(Landing *self, PyObject *pace, int outcome, int code, const char *name, int refused);
/* Take over what an update has made, unless that was done at its launch. Return -1 with an error. */
int update_made(PyObject *update);
/* Note that an update is over, whose value is handed out. Return -1 with an error. */
int update_landed(PyObject *update);
/* Note that an update has failed, or was cancelled. Its run is over. */
void update_failed(PyObject *update, PyObject *run);
/* Return the `Landing` of an update of a feed for all that has changed; `MISS`, with no effect, if Python must make it. */
PyObject *update_launch(PyObject *updates, PyObject *feed, PyObject *seen, PyObject *stats);

/* ---- what a task awaits (awaited.c) -------------------------------------------------------------------------------- */

/* How something is awaited. `launch` returns its `Landing`; `MISS`, with no effect, if Python must make the call; NULL with
 * an error. `general` returns the coroutine or generator that makes it, `follow` one that goes on from its launch: that
 * gives the other tasks their turn first. `finish` may be NULL; it takes over the result, and returns it. `leave` may be
 * NULL; it notes that a call has ended that was launched here. `unasked` is the warning for a coroutine that is never
 * awaited; NULL for a generator. */
typedef struct {
    PyObject *(*launch)(PyObject *subject), *(*general)(PyObject *subject), *(*follow)(PyObject *subject, PyObject *landing);
    PyObject *(*finish)(PyObject *subject, PyObject *result);
    void (*leave)(PyObject *subject);
    const char *unasked;
} Awaiting;

/* Return what drives a call. With a `landing` it has been launched. */
PyObject *awaited_new(const Awaiting *how, PyObject *subject, PyObject *landing);
PyObject *await_landing(PyObject *landing);
/* Return 1 if the task may go on; 0 if a checkpoint would raise, or this is no task; -1 with an error. */
int may_go_on(void);

/* Return 1 if the flight of a plan may serve a run of this op, 0 if not, -1 with an error. */
int may_serve(PyObject *op);
/* Return the `Landing` of an op's run in a task of trio; `MISS`, with no effect, if Python must run it. */
PyObject *landing_launch(PyObject *op);
/* Return the result, if the run is over within the spin; else `MISS`. */
PyObject *landing_land(PyObject *landing, PyObject *unused);
/* Release the locks. The run is over. */
PyObject *landing_end(PyObject *landing, PyObject *unused);

/* Take the frames of dagpu's own from the traceback of the error that is set, as the methods of Python do. */
void without_our_frames(void);
/* Count a call that is left to Python. */
void count_refused(void);
/* Return a method of a class in C, from the class and the function of Python in `args`: it has the documentation of that,
 * which becomes `general`. */
PyObject *method_of(PyObject *args, const char *signature, PyMethodDef *definition, PyObject **general);

#endif
