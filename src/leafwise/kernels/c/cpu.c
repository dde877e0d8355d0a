/* Statistics of many arrays, each in one pass. See cpu.py for how it is called, and reference.py for the reference.

   An array is cut into chunks, which threads process one after another, and a chunk into blocks, which stay in the
   cache while they are read more than once. The blocks of a chunk are combined in order, and each chunk has its own
   result, so the results do not depend on the number of threads. */

/* For files of more than 2 GiB on systems with 32-bit offsets by default. */
#define _FILE_OFFSET_BITS 64

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "instruction_sets.h"

_Static_assert(sizeof(off_t) == 8, "an offset in a file would be cut off");

#include "chunk.h"

struct work {
    const struct lanes *lanes;
    int64_t arrays, chunk, next, unread; /* unread: the number of an array that could not be read, plus one */
    const int64_t *addresses, *sizes, *first_chunks; /* first_chunks has one more element than there are arrays */
    const int32_t *files, *kinds, *values_of;        /* for an array in a file, the address is its offset there */
    const float *values, *tiny;
    struct result *results;
    int64_t *histograms;
};

static int64_t array_of(const struct work *work, int64_t chunk)
{
    int64_t low = 0, high = work->arrays;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (work->first_chunks[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    /* Arrays without elements have no chunks, and begin at the same chunk as the next array. */
    return low;
}

static void *run(void *given)
{
    struct work *work = given;
    int64_t chunks = work->first_chunks[work->arrays], number;
    struct room *room = malloc(sizeof *room);
    char *bytes = work->files ? malloc((size_t)STEP * 8) : NULL;
    fenv_t before;
    if (!room || (work->files && !bytes)) {
        free(room), free(bytes);
        return given;
    }
    /* This thread may be set to flush subnormals to zero. */
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    while ((number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t array = array_of(work, number);
        int64_t start = (number - work->first_chunks[array]) * work->chunk, left = work->sizes[array] - start;
        enum kind kind = (enum kind)work->kinds[array];
        int64_t size = left < work->chunk ? left : work->chunk, at = work->addresses[array] + start * item_bytes[kind];
        struct side side = {at, work->files ? work->files[array] : -1, bytes};
        memset(room->histogram, 0, sizeof room->histogram);
        if (!measure_chunk(work->lanes, kind, &side, size, work->values + BINS * work->values_of[array],
                           work->tiny[array], work->histograms != NULL, room, work->results + number)) {
            __atomic_store_n(&work->unread, array + 1, __ATOMIC_RELAXED);
            break;
        }
        for (int bin = 0; work->histograms && bin < BINS; bin++)
            if (room->histogram[bin])
                __atomic_fetch_add(work->histograms + array * BINS + bin, room->histogram[bin], __ATOMIC_RELAXED);
    }
    fesetenv(&before);
    free(room), free(bytes);
    return NULL;
}

/* Does the work in this thread and others; returns whether this thread had no memory. A thread without memory leaves
   its chunks to the others. Chunks can be left over only if this thread had no memory. */
static int in_threads(void *(*run)(void *), void *work, int threads)
{
    pthread_t others[64];
    int started = 0, failed;
    while (started < threads - 1 && started < 64 && !pthread_create(&others[started], NULL, run, work))
        started++;
    failed = run(work) != NULL;
    while (started)
        pthread_join(others[--started], NULL);
    return failed;
}

/* Measures arrays. There is one result for each chunk, and one histogram of 256 bins for each array, to which counts
   are added; histograms may be NULL. `files` are descriptors, or -1 for arrays in memory, or NULL if all are in memory.
   Returns 0 for success, -1 if there was not enough memory, and n + 1 if array n could not be read. */
int64_t leafwise_measure(int64_t arrays, int64_t chunk, const int64_t *addresses, const int64_t *sizes,
                         const int64_t *first_chunks, const int32_t *files, const int32_t *kinds,
                         const int32_t *values_of, const float *values, const float *tiny, void *results,
                         int64_t *histograms, int threads, int instruction_set)
{
    struct work work = {instruction_sets[instruction_set],
                        arrays,
                        chunk,
                        0,
                        0,
                        addresses,
                        sizes,
                        first_chunks,
                        files,
                        kinds,
                        values_of,
                        values,
                        tiny,
                        results,
                        histograms};
    int failed = in_threads(run, &work, threads);
    return work.unread ? work.unread : failed && work.next < first_chunks[arrays] ? -1 : 0;
}

/* Lets the caller detect a library that was built from another version of this code. */
int64_t leafwise_result_bytes(void)
{
    return (int64_t)sizeof(struct result);
}

#include "combining.h"
#include "comparing.h"
#include "hashing.h"
#include "listing.h"
#include "reading.h"
#include "tensors.h"
