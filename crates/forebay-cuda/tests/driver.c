/* The CUDA driver's calls that Forebay makes, without a device: each adds a line to the file in
 * FAKE_CUDA_LOG. FAKE_CUDA_DEVICES is their number, FAKE_CUDA_FAIL a call that fails. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201 };
enum { MOST = 16 };

static int retained[MOST];
static char contexts[MOST];
static __thread void *stack[MOST];
static __thread int depth;
static __thread int capture;

static void say(const char *format, ...)
{
    char line[200];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    const char *path = getenv("FAKE_CUDA_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    /* One write, so that lines of several threads do not mix. */
    if (file >= 0 && write(file, line, (size_t)length) < 0)
        abort();
    if (file >= 0)
        close(file);
}

static int result(const char *call, int otherwise)
{
    const char *fails = getenv("FAKE_CUDA_FAIL");
    return fails && strcmp(fails, call) == 0 ? OUT_OF_MEMORY : otherwise;
}

static int devices(void)
{
    const char *number = getenv("FAKE_CUDA_DEVICES");
    return number ? atoi(number) : 1;
}

int cuInit(unsigned flags)
{
    say("init %u\n", flags);
    return result("cuInit", devices() ? SUCCESS : NO_DEVICE);
}

int cuDeviceGetCount(int *count) { *count = devices(); return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }

int cuCtxGetCurrent(void **context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

int cuCtxGetDevice(int *device)
{
    if (!depth)
        return INVALID_CONTEXT;
    *device = (int)((char *)stack[depth - 1] - contexts);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context)
{
    if (depth == MOST)
        return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    retained[device]++;
    *context = contexts + device;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) { retained[device]--; return SUCCESS; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = retained[device] > 0;
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture;
    capture = *mode;
    *mode = before;
    return SUCCESS;
}

/* What the calls below need around them: a context, and the mode that disturbs no recording (2). */
static int ready(const char *call)
{
    if (!depth || capture != 2) {
        say("%s without context or in mode %d\n", call, capture);
        return INVALID_CONTEXT;
    }
    return SUCCESS;
}

int cuCtxSynchronize(void)
{
    int state = ready("synchronize");
    if (state)
        return state;
    say("synchronize begins on %d\n", (int)((char *)stack[depth - 1] - contexts));
    usleep(1000);
    say("synchronize ends\n");
    return result("cuCtxSynchronize", SUCCESS);
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    int state = ready("alloc");
    if (state || (state = result("cuMemHostAlloc", SUCCESS)))
        return state;
    *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Memory of the driver's is not initialised. */
    memset(*at, 0xa5, bytes);
    say("alloc %p %zu flags %u\n", *at, bytes, flags);
    return SUCCESS;
}

int cuMemFreeHost(void *at)
{
    int state = ready("free");
    if (!state)
        say("free %p\n", at);
    return state;
}

int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    int state = ready("register");
    if (!state)
        say("register %p %zu flags %u\n", at, bytes, flags);
    return state;
}

/* The pages must still be mapped. */
int cuMemHostUnregister(void *at)
{
    unsigned char resident;
    int state = ready("unregister");
    if (!state)
        say("unregister %p%s\n", at, mincore(at, 1, &resident) ? " after it was unmapped" : "");
    return state;
}
