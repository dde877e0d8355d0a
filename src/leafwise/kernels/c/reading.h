/* Threads that read ranges of files into buffers, and compute checksums on the way, while the caller does something
 * else with the buffers that are full. They do not know of Python, and never wait for its lock. */

#include <time.h>

struct range {
    int64_t file;             /* a descriptor; or -1 for bytes that a range before this one has read */
    int64_t offset, position; /* in the file, and in the buffer */
    int64_t nbytes;
    int64_t piece;     /* bytes that have one checksum; 0 if none is computed */
    int64_t checksums; /* where the checksums of this range begin; there is none for a piece of less than LEAST bytes */
};

#define LEAST 241

struct filled {
    int64_t task, buffer, is_read;
};

struct reader {
    pthread_mutex_t lock;
    pthread_cond_t given, done;  /* a buffer was given; a task is done */
    const int64_t *first_ranges; /* of each task, and of one more */
    const struct range *ranges;
    uint64_t *checksums;
    adds_stripes *add_stripes;
    int64_t tasks, next, finished, taken;
    struct filled *results; /* of each task that is done, in that order; `taken` of them were returned */
    char **buffers;
    int64_t *free_buffers, buffer_count, free_count, most_buffers;
    int is_stopped, threads;
    pthread_t ids[64];
};

/* Returns whether all bytes were there. */
static int read_bytes(int file, char *into, int64_t nbytes, int64_t offset)
{
    while (nbytes) {
        /* Linux reads at most 2 GiB at a time, and other systems refuse more. */
        ssize_t count = pread(file, into, (size_t)(nbytes < 1 << 30 ? nbytes : 1 << 30), (off_t)offset);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        into += count, nbytes -= count, offset += count;
    }
    return 1;
}

/* Reads one piece after the other: its checksum is computed while it is in the cache. */
static int read_range(const struct reader *reader, const struct range *range, char *buffer)
{
    int64_t step = range->piece ? range->piece : range->nbytes;
    uint64_t *checksum = reader->checksums + range->checksums;
    for (int64_t start = 0; start < range->nbytes; start += step) {
        int64_t size = range->nbytes - start < step ? range->nbytes - start : step;
        char *at = buffer + range->position + start;
        if (__atomic_load_n(&reader->is_stopped, __ATOMIC_RELAXED))
            return 0;
        if (range->file >= 0 && !read_bytes((int)range->file, at, size, range->offset + start))
            return 0;
        if (range->piece && size >= LEAST)
            *checksum++ = xxh3_of(at, size, reader->add_stripes);
    }
    return 1;
}

static void *read_tasks(void *given)
{
    struct reader *reader = given;
    pthread_mutex_lock(&reader->lock);
    for (;;) {
        while (!reader->is_stopped && reader->next < reader->tasks && !reader->free_count)
            pthread_cond_wait(&reader->given, &reader->lock);
        if (reader->is_stopped || reader->next == reader->tasks)
            break;
        struct filled filled = {reader->next++, reader->free_buffers[--reader->free_count], 1};
        pthread_mutex_unlock(&reader->lock);
        int64_t last = reader->first_ranges[filled.task + 1];
        for (int64_t range = reader->first_ranges[filled.task]; range < last && filled.is_read; range++)
            filled.is_read = read_range(reader, reader->ranges + range, reader->buffers[filled.buffer]);
        pthread_mutex_lock(&reader->lock);
        reader->results[reader->finished++] = filled;
        pthread_cond_signal(&reader->done);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* Ends all threads, after the reads that they have begun, and frees the reader. */
void leafwise_reader_close(struct reader *reader)
{
    pthread_mutex_lock(&reader->lock);
    __atomic_store_n(&reader->is_stopped, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&reader->given);
    pthread_mutex_unlock(&reader->lock);
    while (reader->threads)
        pthread_join(reader->ids[--reader->threads], NULL);
    pthread_cond_destroy(&reader->given), pthread_cond_destroy(&reader->done);
    pthread_mutex_destroy(&reader->lock);
    free(reader->results), free(reader->buffers), free(reader->free_buffers), free(reader);
}

/* Starts threads that read tasks, each into one of at most `most_buffers` buffers, which the caller gives. What the
 * arguments point to must stay until the reader is closed. Returns NULL if there is no memory, or no thread. */
struct reader *leafwise_reader_open(int64_t tasks, const int64_t *first_ranges, const struct range *ranges,
                                    uint64_t *checksums, int64_t most_buffers, int threads, int instruction_set)
{
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return NULL;
    reader->first_ranges = first_ranges, reader->ranges = ranges, reader->checksums = checksums;
    reader->tasks = tasks, reader->most_buffers = most_buffers;
    reader->add_stripes = fastest_stripes(instruction_set);
    reader->results = calloc((size_t)tasks + 1, sizeof *reader->results);
    reader->buffers = calloc((size_t)most_buffers + 1, sizeof *reader->buffers);
    reader->free_buffers = calloc((size_t)most_buffers + 1, sizeof *reader->free_buffers);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
#if !defined(__APPLE__) /* which has no other clock for this */
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
#endif
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->given, NULL), pthread_cond_init(&reader->done, &clock);
    pthread_condattr_destroy(&clock);
    if (reader->results && reader->buffers && reader->free_buffers)
        while (reader->threads < threads && reader->threads < 64 &&
               !pthread_create(&reader->ids[reader->threads], NULL, read_tasks, reader))
            reader->threads++;
    if (reader->threads)
        return reader;
    leafwise_reader_close(reader);
    return NULL;
}

/* Adds a buffer, to be filled. Returns its number, or -1 if there are too many. */
int64_t leafwise_reader_add(struct reader *reader, char *buffer)
{
    int64_t number = -1;
    pthread_mutex_lock(&reader->lock);
    if (reader->buffer_count < reader->most_buffers) {
        number = reader->buffer_count++;
        reader->buffers[number] = buffer;
        reader->free_buffers[reader->free_count++] = number;
        pthread_cond_signal(&reader->given);
    }
    pthread_mutex_unlock(&reader->lock);
    return number;
}

/* Gives back a buffer that was returned full. */
void leafwise_reader_give(struct reader *reader, int64_t buffer)
{
    pthread_mutex_lock(&reader->lock);
    reader->free_buffers[reader->free_count++] = buffer;
    pthread_cond_signal(&reader->given);
    pthread_mutex_unlock(&reader->lock);
}

/* Waits for a task that is done, for at most so many microseconds. Returns whether there is one. */
int leafwise_reader_wait(struct reader *reader, int64_t microseconds, struct filled *filled)
{
    struct timespec until;
#if defined(__APPLE__)
    clock_gettime(CLOCK_REALTIME, &until);
#else
    clock_gettime(CLOCK_MONOTONIC, &until);
#endif
    int64_t nanoseconds = until.tv_nsec + 1000 * (microseconds % 1000000);
    until.tv_sec += (time_t)(microseconds / 1000000 + nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    pthread_mutex_lock(&reader->lock);
    while (reader->taken == reader->finished &&
           pthread_cond_timedwait(&reader->done, &reader->lock, &until) != ETIMEDOUT)
        ;
    int is_done = reader->taken < reader->finished;
    if (is_done)
        *filled = reader->results[reader->taken++];
    pthread_mutex_unlock(&reader->lock);
    return is_done;
}
