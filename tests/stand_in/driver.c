/* A libcuda without a device: it writes down what the functions for streams, events, copies, launches and graphs get, by
 * the structs of cuda.h.
 *
 * Kernels and copies do nothing. Host functions run on a thread of the driver's own, in order; while a kernel is under
 * way (`stand_in_busy`) they wait, and so does whoever waits for the device. Whoever loads a module or frees memory holds
 * a lock of the context meanwhile, and every call waits for that lock of which it is not known that it does not
 * (ANYTIME). Nobody waits for ever: a wait that outlasts `stand_in_patience` is a deadlock, and ends the process with
 * status 86 and a line on stderr.
 *
 * Handles are small numbers that tell what they are: streams 0x100, functions 0x200, graphs 0x300, nodes 0x400,
 * executable graphs 0x500, events 0x600, conditions 0x900, each plus its number, from 1 on. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char log_text[1 << 16];
static size_t log_end;
static char failing[64];
static CUresult failing_code;
static uintptr_t streams, functions, graphs, nodes, executables, events, conditions;
static int version = CUDA_VERSION;
static double patience = 30;

#define HANDLE(type, base, count) ((type)(uintptr_t)((base) + ++(count)))

const char *stand_in_log(void) { return log_text; }
void stand_in_clear(void) { log_text[log_end = 0] = 0; }
void stand_in_fail(const char *call, int code) {
    strncpy(failing, call, sizeof failing - 1);
    failing_code = (CUresult)code;
}

static void say(const char *format, ...) {
    va_list arguments;
    if (log_end > sizeof log_text - 4096) return; /* full */
    va_start(arguments, format);
    log_end += vsnprintf(log_text + log_end, sizeof log_text - log_end, format, arguments);
    va_end(arguments);
}

/* ---- the device, and a second Python thread ---- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct { CUhostFn function; void *argument; } queue[64];
static int first, last, serving, busy;
static char meeting[64];
static double meeting_seconds;
static int arrived, met;
static int loading, gone_on;  /* does a thread hold the lock of the context? */
static char behind[1 << 12];  /* the calls that have waited for that lock, each with a space, since `stand_in_busy` */

static struct timespec after(double seconds) {
    struct timespec when;
    clock_gettime(CLOCK_REALTIME, &when);
    when.tv_sec += (time_t)seconds;
    when.tv_nsec += (long)((seconds - (time_t)seconds) * 1e9);
    if (when.tv_nsec >= 1000000000) ++when.tv_sec, when.tv_nsec -= 1000000000;
    return when;
}

void stand_in_patience(double seconds) { patience = seconds; }

/* A kernel is under way from now on, until somebody waits for the device; nobody has waited behind a load yet. */
void stand_in_busy(void) {
    pthread_mutex_lock(&lock);
    busy = 1;
    gone_on = behind[0] = 0;
    pthread_mutex_unlock(&lock);
}

/* The next call of this name waits until stand_in_met is called, or for so long. */
void stand_in_meet(const char *call, double seconds) {
    pthread_mutex_lock(&lock);
    strncpy(meeting, call, sizeof meeting - 1);
    meeting_seconds = seconds;
    arrived = met = 0;
    pthread_mutex_unlock(&lock);
}
/* No call does any more. */
void stand_in_meet_nobody(void) {
    pthread_mutex_lock(&lock);
    meeting[0] = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
/* Returns once that call is made, or will not be: 1 or 0. */
int stand_in_arrived(void) {
    pthread_mutex_lock(&lock);
    while (!arrived && meeting[0]) pthread_cond_wait(&changed, &lock);
    int found = arrived;
    pthread_mutex_unlock(&lock);
    return found;
}
/* 1 if that call still waits, 0 if it was weary of waiting. */
int stand_in_met(void) {
    pthread_mutex_lock(&lock);
    int found = arrived == 1;
    met = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return found;
}
static void meet(const char *call) {
    pthread_mutex_lock(&lock);
    if (!strcmp(call, meeting)) {
        struct timespec end = after(meeting_seconds);
        meeting[0] = 0;
        arrived = 1;
        pthread_cond_broadcast(&changed);
        while (!met && pthread_cond_timedwait(&changed, &lock, &end) != ETIMEDOUT) {}
        if (!met) arrived = 2;
    }
    pthread_mutex_unlock(&lock);
}

static void *serve(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (busy || first == last) pthread_cond_wait(&changed, &lock);
        int number = first % 64;
        pthread_mutex_unlock(&lock);
        queue[number].function(queue[number].argument);
        pthread_mutex_lock(&lock);
        ++first;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}
static void deadlock(const char *call, const char *what) {
    fprintf(stderr, "deadlock: %s waits %s that does not end\n", call, what);
    _exit(86);
}
/* With the lock held. */
static void until_done(const char *call) {
    struct timespec end = after(patience);
    busy = 0; /* the kernel ends now: so whoever waits is in here before a host function runs */
    pthread_cond_broadcast(&changed);
    while (first != last)
        if (pthread_cond_timedwait(&changed, &lock, &end) == ETIMEDOUT) deadlock(call, "for a host function");
}
static void wait_for_device(const char *call) {
    pthread_mutex_lock(&lock);
    until_done(call);
    pthread_mutex_unlock(&lock);
}

/* ---- the lock of the context ---- */
/* With the lock held. */
static void pass_loads(const char *call) {
    struct timespec end = after(patience);
    if (!loading) return;
    strcat(strcat(behind, call), " ");
    pthread_cond_broadcast(&changed);
    while (loading)
        if (pthread_cond_timedwait(&changed, &lock, &end) == ETIMEDOUT) deadlock(call, "behind a load");
}
static void load(const char *call) {
    pthread_mutex_lock(&lock);
    pass_loads(call);
    loading = 1;
    until_done(call);
    loading = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
/* Returns once a thread waits for the device with the lock of the context. */
void stand_in_beside_a_load(void) {
    pthread_mutex_lock(&lock);
    while (!loading) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
/* Returns once another thread waits for that lock, or `stand_in_go_on` is called. */
void stand_in_until_behind(void) {
    pthread_mutex_lock(&lock);
    while (!behind[0] && !gone_on) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
/* The calls that have waited for it. */
const char *stand_in_go_on(void) {
    pthread_mutex_lock(&lock);
    gone_on = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return behind;
}

/* Every function begins so: it meets whom it is to meet, may have to wait for the lock, and fails where it was told to. */
static CUresult enter(const char *call, int anytime) {
    meet(call);
    if (!anytime) {
        pthread_mutex_lock(&lock);
        pass_loads(call);
        pthread_mutex_unlock(&lock);
    }
    if (strcmp(call, failing)) return CUDA_SUCCESS;
    failing[0] = 0;
    return failing_code;
}
#define BEGIN(call, anytime) \
    do { CUresult code = enter(call, anytime); if (code) { say(call ": %d\n", (int)code); return code; } } while (0)
#define ENTER(call) BEGIN(call, 0)
/* A function that only gives something back. */
#define GIVES(call, ...) { ENTER(call); __VA_ARGS__; return CUDA_SUCCESS; }
/* The same, of one that waits for no lock of a context. */
#define ANYTIME(call, ...) { BEGIN(call, 1); __VA_ARGS__; return CUDA_SUCCESS; }

static void say_needs(const CUgraphNode *needs, size_t count) {
    say(" after");
    for (size_t i = 0; i < count; ++i) say(" %lx", (unsigned long)needs[i]);
    say(";");
}

static void say_extra(void **extra) {
    if (!extra) { say(" no extra\n"); return; }
    const unsigned char *bytes = NULL;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) bytes = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
        else say(" unknown option");
    }
    say(" parameters ");
    for (size_t i = 0; i < size; ++i) say("%02x", bytes[i]);
    say("\n");
}

static void say_kernel(const CUDA_KERNEL_NODE_PARAMS *p) {
    say(" %lx grid %u %u %u block %u %u %u shared %u pointers %lx kern %lx ctx %lx;", (unsigned long)p->func, p->gridDimX,
        p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ, p->sharedMemBytes,
        (unsigned long)p->kernelParams, (unsigned long)p->kern, (unsigned long)p->ctx);
    say_extra(p->extra);
}

static void say_copy(const CUDA_MEMCPY3D *p, CUcontext context) {
    size_t others = p->srcXInBytes | p->srcY | p->srcZ | p->srcLOD | (size_t)p->srcArray | (size_t)p->reserved0 |
                    p->srcPitch | p->srcHeight | p->dstXInBytes | p->dstY | p->dstZ | p->dstLOD | (size_t)p->dstArray |
                    (size_t)p->reserved1 | p->dstPitch | p->dstHeight;
    say(" from %d %lx %llx to %d %lx %llx, %zu x %zu x %zu, others %zu, ctx %lx\n", p->srcMemoryType,
        (unsigned long)p->srcHost, p->srcDevice, p->dstMemoryType, (unsigned long)p->dstHost, p->dstDevice,
        p->WidthInBytes, p->Height, p->Depth, others, (unsigned long)context);
}

static void say_fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context) {
    say(" %llx pitch %zu value %u size %u, %zu x %zu, ctx %lx\n", p->dst, p->pitch, p->value, p->elementSize, p->width,
        p->height, (unsigned long)context);
}

/* ---- graphs ---- */
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    BEGIN("cuGraphCreate", 1);
    *graph = HANDLE(CUgraph, 0x300, graphs);
    say("create %lx flags %u\n", (unsigned long)*graph, flags);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER("cuGraphAddKernelNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" kernel");
    say_kernel(params);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMCPY3D *params, CUcontext context) {
    ENTER("cuGraphAddMemcpyNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" copy");
    say_copy(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    ENTER("cuGraphAddMemsetNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" fill");
    say_fill(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUgraph child) {
    ENTER("cuGraphAddChildGraphNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" child %lx\n", (unsigned long)child);
    return CUDA_SUCCESS;
}
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                        unsigned int value, unsigned int flags) {
    ENTER("cuGraphConditionalHandleCreate");
    *handle = HANDLE(CUgraphConditionalHandle, 0x900, conditions);
    say("condition %llx of %lx in %lx first %u flags %u\n", (unsigned long long)*handle, (unsigned long)graph,
        (unsigned long)context, value, flags);
    return CUDA_SUCCESS;
}
/* The driver owns the array with the graph of the body. */
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
                           size_t count, CUgraphNodeParams *params) {
    static CUgraph bodies[64];
    ENTER("cuGraphAddNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    params->conditional.phGraph_out = bodies + (uintptr_t)*node % 64;
    *params->conditional.phGraph_out = HANDLE(CUgraph, 0x300, graphs);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    for (size_t i = 0; edges && i < count; ++i) say(" from_port %d type %d;", edges[i].from_port, edges[i].type);
    say(" type %d, condition %llx of type %d in %lx, %u body %lx\n", (int)params->type,
        (unsigned long long)params->conditional.handle, (int)params->conditional.type,
        (unsigned long)params->conditional.ctx, params->conditional.size, (unsigned long)*params->conditional.phGraph_out);
    return CUDA_SUCCESS;
}
/* ---- a captured graph: two kernels, a copy of rows, a fill, a child graph with one kernel more, and an empty node ----
 * Nodes 0x701 to 0x706, in graph 0x300 + n; the child graph is 0x3ff. The second kernel has no CUfunction but a CUkernel,
 * the third has its parameters in `extra`. */
static struct { uint64_t address; int number; uint64_t other; } captured_struct = {0x5000, 7, 0x6000};
static uint64_t captured_pointer = 0x5100;
static int captured_int = 9;
static void *captured_params[] = {&captured_struct, &captured_int, &captured_pointer};
static size_t captured_size = 16;
static uint64_t captured_buffer[] = {0x7000, 0x7100};
static void *captured_extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, captured_buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &captured_size,
                                 CU_LAUNCH_PARAM_END};
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *found, size_t *count) {
    ENTER("cuGraphGetNodes");
    uintptr_t first = graph == (CUgraph)0x3ff ? 0x706 : 0x701, number = graph == (CUgraph)0x3ff ? 1 : 6;
    for (uintptr_t i = 0; found && i < number && i < *count; ++i) found[i] = (CUgraphNode)(i == 5 ? 0x707 : first + i);
    *count = number;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    static const CUgraphNodeType types[] = {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
        CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_EMPTY};
    ENTER("cuGraphNodeGetType");
    *type = types[(uintptr_t)node - 0x701];
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER("cuGraphKernelNodeGetParams");
    memset(params, 0, sizeof *params);
    if (node == (CUgraphNode)0x702) params->kern = (CUkernel)0x802;
    else params->func = (CUfunction)(uintptr_t)((uintptr_t)node + 0x100);
    if (node == (CUgraphNode)0x706) params->extra = captured_extra;
    else params->kernelParams = captured_params;
    return CUDA_SUCCESS;
}
static CUresult captured_info(size_t index, size_t *offset, size_t *size) {
    static const size_t offsets[] = {0, 24, 32}, sizes[] = {24, 4, 8};
    if (index >= 3) return CUDA_ERROR_INVALID_VALUE;
    *offset = offsets[index], *size = sizes[index];
    return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    ENTER("cuFuncGetParamInfo");
    return captured_info(index, offset, size);
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    ENTER("cuKernelGetParamInfo");
    return captured_info(index, offset, size);
}
CUresult cuFuncGetName(const char **name, CUfunction function) GIVES("cuFuncGetName", *name = "gemm")
CUresult cuKernelGetName(const char **name, CUkernel kernel) GIVES("cuKernelGetName", *name = "relu")
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params) {
    ENTER("cuGraphMemcpyNodeGetParams");
    memset(params, 0, sizeof *params);
    params->srcMemoryType = CU_MEMORYTYPE_DEVICE, params->srcDevice = 0x8000, params->srcPitch = 64, params->srcXInBytes = 4;
    params->srcY = 1, params->dstMemoryType = CU_MEMORYTYPE_HOST, params->dstHost = (void *)0x9000;
    params->WidthInBytes = 16, params->Height = 3, params->Depth = 1;
    return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    ENTER("cuGraphMemsetNodeGetParams");
    memset(params, 0, sizeof *params);
    params->dst = 0xa000, params->pitch = 32, params->elementSize = 4, params->width = 5, params->height = 2;
    return CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
    GIVES("cuGraphChildGraphNodeGetGraph", *graph = (CUgraph)0x3ff)
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
    ENTER("cuGraphAddDependencies");
    for (size_t i = 0; i < count; ++i)
        say("edge in %lx from %lx port %d to %lx port %d type %d\n", (unsigned long)graph, (unsigned long)from[i],
            edges[i].from_port, (unsigned long)to[i], edges[i].to_port, edges[i].type);
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    ENTER("cuGraphInstantiate");
    wait_for_device("cuGraphInstantiate");
    *executable = HANDLE(CUgraphExec, 0x500, executables);
    say("instantiate %lx of %lx flags %llu\n", (unsigned long)*executable, (unsigned long)graph, flags);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    BEGIN("cuGraphExecKernelNodeSetParams", 1);
    say("set %lx in %lx; kernel", (unsigned long)node, (unsigned long)executable);
    say_kernel(params);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D *params,
                                        CUcontext context) {
    BEGIN("cuGraphExecMemcpyNodeSetParams", 1);
    say("set %lx in %lx; copy", (unsigned long)node, (unsigned long)executable);
    say_copy(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext context) {
    BEGIN("cuGraphExecMemsetNodeSetParams", 1);
    say("set %lx in %lx; fill", (unsigned long)node, (unsigned long)executable);
    say_fill(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
    ENTER("cuGraphExecChildGraphNodeSetParams");
    say("set %lx in %lx; child %lx\n", (unsigned long)node, (unsigned long)executable, (unsigned long)child);
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    ENTER("cuGraphUpload");
    say("upload %lx in %lx\n", (unsigned long)executable, (unsigned long)stream);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    ENTER("cuGraphLaunch");
    say("launch %lx in %lx\n", (unsigned long)executable, (unsigned long)stream);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
    ENTER("cuGraphExecDestroy");
    say("destroy %lx\n", (unsigned long)executable);
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
    ENTER("cuGraphDestroy");
    say("destroy %lx\n", (unsigned long)graph);
    return CUDA_SUCCESS;
}

/* ---- launches and host functions ---- */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **pointers, void **extra) {
    ENTER("cuLaunchKernelEx");
    say("start %lx in %lx grid %u %u %u block %u %u %u shared %u attributes %u %lx pointers %lx;", (unsigned long)function,
        (unsigned long)config->hStream, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->numAttrs, (unsigned long)config->attrs,
        (unsigned long)pointers);
    say_extra(extra);
    return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument) {
    ENTER("cuLaunchHostFunc");
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (!serving++) pthread_create(&thread, NULL, serve, NULL);
    queue[last % 64].function = function, queue[last % 64].argument = argument, ++last;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* ---- devices, contexts, modules ---- */
CUresult cuInit(unsigned int flags) ANYTIME("cuInit")
void stand_in_version(int number) { version = number; }
CUresult cuDriverGetVersion(int *number) ANYTIME("cuDriverGetVersion", *number = version)
CUresult cuDeviceGetCount(int *count) ANYTIME("cuDeviceGetCount", *count = 1)
CUresult cuDeviceGet(CUdevice *device, int ordinal) ANYTIME("cuDeviceGet", *device = ordinal)
CUresult cuDeviceGetName(char *name, int room, CUdevice device) ANYTIME("cuDeviceGetName", snprintf(name, room, "stand-in"))
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
    ANYTIME("cuDeviceGetAttribute", *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 1024)
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
    ANYTIME("cuDeviceComputeCapability", *major = 9, *minor = 0)
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) ANYTIME("cuDeviceCanAccessPeer", *can = 1)
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
    ANYTIME("cuDevicePrimaryCtxRetain", *context = (CUcontext)0xc0)
CUresult cuCtxPushCurrent(CUcontext context) ANYTIME("cuCtxPushCurrent")
CUresult cuCtxPopCurrent(CUcontext *context) ANYTIME("cuCtxPopCurrent", *context = (CUcontext)0xc0)
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) GIVES("cuCtxSynchronize", wait_for_device("cuCtxSynchronize"))
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) GIVES("cuCtxEnablePeerAccess")
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)
    ANYTIME("cuModuleLoadDataEx", load("cuModuleLoadDataEx"), *module = (CUmodule)0xa0)
CUresult cuModuleLoadData(CUmodule *module, const void *image)
    ANYTIME("cuModuleLoadData", load("cuModuleLoadData"), *module = (CUmodule)0xa0)
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
    GIVES("cuModuleGetFunction", *function = HANDLE(CUfunction, 0x200, functions))
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
    GIVES("cuModuleGetGlobal", *address = 0x4000, *bytes = 64)
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) ANYTIME("cuFuncGetAttribute", *value = 64)
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUlaunchAttributeID attribute, const CUlaunchAttributeValue *value)
    GIVES("cuGraphKernelNodeSetAttribute", say("attribute %u of %lx: %u\n", (unsigned)attribute, (unsigned long)node,
                                               value->clusterDim.x))
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
    GIVES("cuOccupancyMaxActiveBlocksPerMultiprocessor", *blocks = 2)
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) GIVES("cuFuncSetAttribute")

/* ---- streams, events, memory ---- */
CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
    GIVES("cuStreamCreate", *stream = HANDLE(CUstream, 0x100, streams), say("stream %lx flags %u\n", (unsigned long)*stream, flags))
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
    GIVES("cuStreamBeginCapture", say("begin capture %lx mode %d\n", (unsigned long)stream, (int)mode))
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
    GIVES("cuStreamEndCapture", *graph = HANDLE(CUgraph, 0x300, graphs),
          say("end capture %lx %lx\n", (unsigned long)stream, (unsigned long)*graph))
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
    ANYTIME("cuStreamWaitEvent", say("wait in %lx for %lx flags %u\n", (unsigned long)stream, (unsigned long)event, flags))
CUresult cuStreamQuery(CUstream stream) ANYTIME("cuStreamQuery", say("query stream %lx\n", (unsigned long)stream))
CUresult cuStreamSynchronize(CUstream stream)
    GIVES("cuStreamSynchronize", wait_for_device("cuStreamSynchronize"), say("synchronize stream %lx\n", (unsigned long)stream))
CUresult cuEventCreate(CUevent *event, unsigned int flags)
    GIVES("cuEventCreate", *event = HANDLE(CUevent, 0x600, events), say("event %lx flags %u\n", (unsigned long)*event, flags))
CUresult cuEventRecord(CUevent event, CUstream stream)
    GIVES("cuEventRecord", say("record %lx in %lx\n", (unsigned long)event, (unsigned long)stream))
CUresult cuEventQuery(CUevent event) ANYTIME("cuEventQuery", say("query %lx\n", (unsigned long)event))
CUresult cuEventSynchronize(CUevent event)
    GIVES("cuEventSynchronize", wait_for_device("cuEventSynchronize"), say("synchronize %lx\n", (unsigned long)event))
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
    ANYTIME("cuEventElapsedTime", *milliseconds = 1.5, say("from %lx to %lx\n", (unsigned long)start, (unsigned long)end))
CUresult cuMemAlloc(CUdeviceptr *address, size_t size) GIVES("cuMemAlloc", *address = 0x10000)
CUresult cuMemFree(CUdeviceptr address) ANYTIME("cuMemFree", load("cuMemFree"))
CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags) GIVES("cuMemHostAlloc", *address = malloc(size))
CUresult cuMemFreeHost(void *address) GIVES("cuMemFreeHost", wait_for_device("cuMemFreeHost"), free(address))
CUresult cuMemGetInfo(size_t *left, size_t *total) ANYTIME("cuMemGetInfo", *left = 1 << 20, *total = 1 << 30)
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
    ANYTIME("cuPointerGetAttribute", *(unsigned int *)value = CU_MEMORYTYPE_HOST)
static void say_bytes(const char *what, CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    say("%s %llx from %llx %zu in %lx\n", what, to, from, size, (unsigned long)stream);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream)
    GIVES("cuMemcpyHtoDAsync", say_bytes("in", to, (CUdeviceptr)from, size, stream))
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream)
    GIVES("cuMemcpyDtoHAsync", say_bytes("out", (CUdeviceptr)to, from, size, stream))
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
    GIVES("cuMemcpyDtoDAsync", say_bytes("within", to, from, size, stream))
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *p, CUstream stream) {
    ENTER("cuMemcpy2DAsync");
    size_t others = p->srcXInBytes | p->srcY | (size_t)p->srcHost | (size_t)p->srcArray | p->dstXInBytes | p->dstY |
                    (size_t)p->dstHost | (size_t)p->dstArray;
    say("rows to %d %llx pitch %zu from %d %llx pitch %zu, %zu x %zu, others %zu, in %lx\n", p->dstMemoryType, p->dstDevice,
        p->dstPitch, p->srcMemoryType, p->srcDevice, p->srcPitch, p->WidthInBytes, p->Height, others, (unsigned long)stream);
    return CUDA_SUCCESS;
}
static void say_set(int bits, CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
    say("set %d bits at %llx to %x, %zu, in %lx\n", bits, to, value, count, (unsigned long)stream);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
    GIVES("cuMemsetD8Async", say_set(8, to, value, count, stream))
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
    GIVES("cuMemsetD16Async", say_set(16, to, value, count, stream))
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
    GIVES("cuMemsetD32Async", say_set(32, to, value, count, stream))

CUresult cuGetErrorString(CUresult error, const char **text) {
    meet("cuGetErrorString");
    static char texts[1000][16]; /* each its own: PyCUDA's errors have the text alone, by which the code is found */
    snprintf(texts[error % 1000], sizeof texts[0], "error %d", (int)error);
    return *text = texts[error % 1000], CUDA_SUCCESS;
}

/* ---- how cuda.bindings finds all these ---- */
static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    static const char *const endings[] = {"_v2", "WithFlags", ""};
    char name[128];
    *found = (void *)missing;
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    for (int i = 0; i < 3; ++i) {
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        void *address = dlsym(RTLD_DEFAULT, name);
        if (address) {
            *found = address;
            break;
        }
    }
    return CUDA_SUCCESS;
}
