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

/* With `defers` a Ctrl-C is deferred while code of Python runs; trio does that for a task. The caller closes the section. */
void trip_init(Trip *trip, int defers);
/* Release the locks and all that a call refers to. Its run is over, or was not begun. */
void trip_end(Trip *trip);
/* Take a plan and its flight, if the call is one for it. */
int trip_plan(Trip *trip, Serving *it, PyObject *settings);
/* Read, lock, move and launch, and wait for `spin` seconds. Return -1 with an error; 0 if Python must make the call, which
 * has had no effect; else 1, with the outcome of the launch. */
int trip_begin(Trip *trip, PyObject *op, Serving *it, PyObject *origin, double spin, int *outcome, int *code,
               const char **name, int *refused);
/* Go on in Python after the driver has refused a call. Return the run; NULL with an error, or without one if the call
 * must be made in another way. */
PyObject *trip_refused(Trip *trip, int code, const char *name, int refused);
/* Return the result of a call whose run is over. */
PyObject *trip_result(Trip *trip);

/* Count a call that is left to Python. */
void count_refused(void);
/* Return a method of a class in C, from the class and the function of Python in `args`: it has the documentation of that,
 * which becomes `general`. */
PyObject *method_of(PyObject *args, const char *signature, PyMethodDef *definition, PyObject **general);

#endif
