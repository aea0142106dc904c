/* `busy SHARE MILLISECONDS`: uses SHARE of one core, in one burst each period, until it is ended.
 *
 * The weight that a loader has on the processors, without its locks, its memory and its Python. Time is that
 * of the processor: kept from it by others, the program catches up, as a loader does that has batches to make.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    /* Whoever started this measures with it; it has no purpose beyond. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const double share = atof(words[1]), period = atof(words[2]) / 1000;
    const double start = seconds(CLOCK_MONOTONIC);
    volatile unsigned long work = 0;
    for (unsigned long turn = 1;; turn++) {
        const double due = share * period * (double)turn;
        while (seconds(CLOCK_PROCESS_CPUTIME_ID) < due)
            for (int i = 0; i < 10000; i++) work += (unsigned long)i;
        const double left = start + period * (double)turn - seconds(CLOCK_MONOTONIC);
        if (left > 0) {
            const struct timespec rest = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
            nanosleep(&rest, NULL);
        }
    }
}
