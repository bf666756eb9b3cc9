/* A driver that does nothing: the functions that a run through an idle graph calls, with what they need of graphs.
 *
 * Kernels are never run. A launch is complete at once, unless a test says otherwise (`null_busy`, `null_hold`). The calls
 * are written down (`null_log`), and what no program may do as well (`null_problems`): to change or launch a graph that
 * runs or is destroyed, and to change one where no context is current.
 *
 * The struct of a node's parameters is this driver's own: the reader passes its address on, and never looks inside. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NO_CONTEXT = 201, NOT_READY = 600, MOST_BYTES = 512, PATIENCE = 60 };

typedef struct { unsigned char *bytes; size_t size; } Params;
typedef struct { size_t size; unsigned char bytes[MOST_BYTES]; } Node;
typedef struct { int count, alive, flying; Node nodes[]; } Graph;
typedef struct { Graph *graph; } Stream; /* with the graph that runs in it; an event has the stream of its last record */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char log_text[1 << 16], problem_text[1 << 12], failing[64], meeting[64], pressing[64];
static size_t log_end, problem_end;
static int failing_code, failing_after, lost, held, arrived, gone_on, descriptors[64], n_descriptors;
static long busy, launches, contexts, press_every, entered;
static Graph *last;
static __thread int depth;

static void say(const char *what) {
    if (log_end < sizeof log_text - 128) log_end += (size_t)snprintf(log_text + log_end, 128, "%s\n", what);
}
static void problem(const char *what) {
    if (problem_end < sizeof problem_text - 128)
        problem_end += (size_t)snprintf(problem_text + problem_end, 128, "%s\n", what);
}
static void hang(const char *call) {
    fprintf(stderr, "%s waits for ever\n", call);
    _exit(86);
}
static void until_changed(const char *call) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE;
    if (pthread_cond_timedwait(&changed, &lock, &end)) hang(call);
}

/* How often the device is looked at is a matter of time, and would fill the log. */
static int is_look(const char *call) {
    size_t length = strlen(call);
    return length > 5 && !strcmp(call + length - 5, "Query");
}

/* Every function begins so, and returns with the lock. */
static int enter(const char *call) {
    pthread_mutex_lock(&lock);
    if (!is_look(call)) say(call);
    if (press_every && ++entered % press_every == 0) kill(getpid(), SIGINT);
    if (!strcmp(call, pressing)) {
        pressing[0] = 0;
        kill(getpid(), SIGINT);
    }
    if (!strcmp(call, meeting)) {
        meeting[0] = 0;
        arrived = 1;
        pthread_cond_broadcast(&changed);
        while (!gone_on) until_changed(call);
    }
    if (lost) return lost;
    if (strcmp(call, failing) || failing_after-- > 0) return 0;
    failing[0] = 0;
    return failing_code;
}
static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}
static void close_all(void) {
    while (n_descriptors) close(descriptors[--n_descriptors]);
}
static void finish(Stream *stream) {
    if (stream->graph) stream->graph->flying = 0;
    stream->graph = NULL;
}
static Stream *streams[256];
static int n_streams;
/* All work is complete. */
static void finish_all(void) {
    for (int i = 0; i < n_streams; ++i) finish(streams[i]);
    busy = 0;
    close_all();
}
static int poll(void) {
    if (held) return NOT_READY;
    if (busy <= 0) return 0;
    --busy;
    return NOT_READY;
}

/* ---- the driver ---- */
int cuCtxPushCurrent(void *context) {
    int code = enter("cuCtxPushCurrent");
    if (!code) ++depth, ++contexts;
    if (!context) problem("no context is made current");
    return leave(code);
}
int cuCtxPopCurrent(void **context) {
    pthread_mutex_lock(&lock); /* it fails on no lost device */
    if (depth-- <= 0) problem("a context is popped that was not pushed");
    --contexts;
    *context = NULL;
    return leave(0);
}
static int set_params(const char *call, Graph *graph, Node *node, const Params *params) {
    int code = enter(call);
    if (!graph->alive) problem("a graph is changed after it was destroyed");
    if (graph->flying) problem("a graph is changed while it runs");
    if (node < graph->nodes || node >= graph->nodes + graph->count) problem("a node of another graph is changed");
    else if (params->size != node->size) problem("a node gets parameters of another size");
    else if (!code && depth <= 0) problem("a graph is changed where no context is current"), code = NO_CONTEXT;
    else if (!code) memcpy(node->bytes, params->bytes, node->size);
    return leave(code);
}
int cuGraphExecKernelNodeSetParams(Graph *graph, Node *node, const Params *params) {
    return set_params("cuGraphExecKernelNodeSetParams", graph, node, params);
}
int cuGraphExecMemcpyNodeSetParams(Graph *graph, Node *node, const Params *params, void *context) {
    if (!context) problem("a copy is changed for no context");
    return set_params("cuGraphExecMemcpyNodeSetParams", graph, node, params);
}
int cuGraphLaunch(Graph *graph, Stream *stream) {
    int code = enter("cuGraphLaunch");
    if (!graph->alive) problem("a graph is launched after it was destroyed");
    if (graph->flying) problem("a graph is launched while it runs");
    if (stream->graph) problem("a graph is launched in a stream that another run uses");
    if (!code) {
        stream->graph = last = graph;
        graph->flying = 1;
        ++launches;
    }
    return leave(code);
}
int cuStreamQuery(Stream *stream) {
    int code = enter("cuStreamQuery");
    if (!code) code = poll();
    if (!code) finish(stream);
    return leave(code);
}
int cuStreamSynchronize(Stream *stream) {
    int code = enter("cuStreamSynchronize");
    while (!code && held && !lost) until_changed("cuStreamSynchronize");
    if (!code) code = lost;
    if (!code) busy = 0, finish(stream);
    return leave(code);
}
int cuEventRecord(Stream **event, Stream *stream) {
    int code = enter("cuEventRecord");
    if (!code) *event = stream;
    return leave(code);
}
int cuEventQuery(Stream **event) {
    int code = enter("cuEventQuery");
    if (!code) code = poll();
    if (!code && *event) finish(*event);
    return leave(code);
}
int cuEventSynchronize(Stream **event) {
    int code = enter("cuEventSynchronize");
    while (!code && held && !lost) until_changed("cuEventSynchronize");
    if (!code) code = lost;
    if (!code) busy = 0;
    if (!code && *event) finish(*event);
    return leave(code);
}
static uint64_t copied[4];
/* Write down where to, where from, how many bytes, and the first byte of a copy from the host. */
int cuMemcpyHtoDAsync(uint64_t to, const unsigned char *from, size_t size, Stream *stream) {
    int code = enter("cuMemcpyHtoDAsync");
    if (stream->graph) problem("an array is copied in a stream that another run uses");
    if (!code) copied[0] = to, copied[1] = (uintptr_t)from, copied[2] = size, copied[3] = from[0];
    return leave(code);
}
int cuMemcpyDtoHAsync(unsigned char *to, uint64_t from, size_t size, Stream *stream) {
    int code = enter("cuMemcpyDtoHAsync");
    if (stream->graph) problem("an array is copied in a stream that another run uses");
    if (!code) copied[0] = (uintptr_t)to, copied[1] = from, copied[2] = size, copied[3] = 0;
    if (!code) memset(to, 0, size);
    return leave(code);
}
int cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, Stream *stream) {
    int code = enter("cuMemcpyDtoDAsync");
    if (stream->graph) problem("memory is copied in a stream that another run uses");
    if (!code) copied[0] = to, copied[1] = from, copied[2] = size, copied[3] = (uintptr_t)stream;
    return leave(code);
}
uint64_t null_copied(int which) { return copied[which]; }
int cuCtxSynchronize(void) {
    int code = enter("cuCtxSynchronize");
    while (!code && held && !lost) until_changed("cuCtxSynchronize");
    busy = 0;
    return leave(code ? code : lost);
}
/* Any other call. */
int null_call(const char *call) { return leave(enter(call)); }

/* ---- graphs and streams ---- */
Graph *null_graph(int count) {
    Graph *graph = calloc(1, sizeof(Graph) + (size_t)count * sizeof(Node));
    graph->count = count;
    graph->alive = 1;
    return graph;
}
Node *null_node(Graph *graph, int number, const unsigned char *bytes, size_t size) {
    Node *node = &graph->nodes[number];
    if (size > MOST_BYTES) hang("a node with so many parameters");
    node->size = size;
    memcpy(node->bytes, bytes, size);
    return node;
}
void null_destroy(Graph *graph) { /* its memory stays, so that a later use is noticed */
    pthread_mutex_lock(&lock);
    if (graph->flying) problem("a graph is destroyed while it runs");
    graph->alive = 0;
    leave(0);
}
Stream *null_stream(void) {
    Stream *stream = calloc(1, sizeof(Stream));
    pthread_mutex_lock(&lock);
    if (n_streams < 256) streams[n_streams++] = stream;
    leave(0);
    return stream;
}
Stream **null_event(void) { return calloc(1, sizeof(Stream *)); }

/* ---- what a test says, and asks ---- */
void null_reset(void) {
    pthread_mutex_lock(&lock);
    failing[0] = meeting[0] = pressing[0] = log_text[log_end = 0] = problem_text[problem_end = 0] = 0;
    lost = held = n_streams = 0;
    busy = launches = contexts = press_every = 0;
    last = NULL;
    leave(0);
}
/* The next call of this name but so many fails. */
void null_fail(const char *call, int code, int after) {
    pthread_mutex_lock(&lock);
    snprintf(failing, sizeof failing, "%s", call);
    failing_code = code;
    failing_after = after;
    leave(0);
}
void null_lose(int code) {
    pthread_mutex_lock(&lock);
    lost = code;
    close_all();
    pthread_cond_broadcast(&changed);
    leave(0);
}
/* So many of the next polls find that the work is not complete. Whoever blocks waits until it is. */
void null_busy(long polls) {
    pthread_mutex_lock(&lock);
    busy = polls;
    leave(0);
}
/* No work is complete before `null_release`. */
void null_hold(void) {
    pthread_mutex_lock(&lock);
    held = 1;
    leave(0);
}
void null_release(void) {
    pthread_mutex_lock(&lock);
    held = 0;
    finish_all();
    pthread_cond_broadcast(&changed);
    leave(0);
}
/* Close a descriptor once the work is complete. */
void null_close(int descriptor) {
    pthread_mutex_lock(&lock);
    if (n_descriptors < 64) descriptors[n_descriptors++] = descriptor;
    if (!held) finish_all();
    leave(0);
}
/* Ctrl-C is pressed in every so many-th call from now on; 0 for none. */
void null_press(long every) {
    pthread_mutex_lock(&lock);
    press_every = every;
    leave(0);
}
/* Ctrl-C is pressed once, in the next call of this name. */
void null_press_in(const char *call) {
    pthread_mutex_lock(&lock);
    snprintf(pressing, sizeof pressing, "%s", call);
    leave(0);
}
/* The next call of this name waits for `null_go_on`. */
void null_meet(const char *call) {
    pthread_mutex_lock(&lock);
    snprintf(meeting, sizeof meeting, "%s", call);
    arrived = gone_on = 0;
    leave(0);
}
/* Returns once that call is made. */
void null_met(void) {
    pthread_mutex_lock(&lock);
    while (!arrived) until_changed("null_met");
    leave(0);
}
void null_go_on(void) {
    pthread_mutex_lock(&lock);
    gone_on = 1;
    pthread_cond_broadcast(&changed);
    leave(0);
}
const char *null_log(void) { return log_text; }
void null_clear(void) { log_text[log_end = 0] = 0; }
const char *null_problems(void) { return problem_text; }
long null_launches(void) { return launches; }
long null_contexts(void) { return contexts; }
/* Copy the parameters of a node of the graph that was launched last, and return their size; 0 if it has no such node. */
size_t null_parameters(int number, unsigned char *bytes) {
    if (!last || number >= last->count) return 0;
    memcpy(bytes, last->nodes[number].bytes, last->nodes[number].size);
    return last->nodes[number].size;
}
