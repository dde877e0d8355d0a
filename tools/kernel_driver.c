/* Runs the kernels over the arrays in a file, and writes the results to standard output: for machines that have a C
   compiler, or an emulator, but no Python. kernel_matrix.py writes the file and compares the output.

   The file: number of arrays, chunk size, number of tables, number of chunks; then the offsets of the arrays, the
   offsets of the arrays that they are compared with, and the sizes; the first chunk of each array, and the end of the
   last (all int64). Then for each array its kind and its table (int32); the tables; for each array its smallest normal
   number (float); each padded to 8 bytes. Then the data. */

#include "cpu.c"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static const char *take(const char **at, size_t bytes)
{
    const char *here = *at;
    *at += (bytes + 7) / 8 * 8;
    return here;
}

/* A copy of an array in its own memory of exactly its size, so that a sanitizer detects reads beyond the end. */
static int64_t copied(const char *from, size_t bytes)
{
    char *copy = malloc(bytes);
    if (!copy)
        abort();
    memcpy(copy, from, bytes);
    return (int64_t)(intptr_t)copy;
}

static void say(const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, stdout) != count)
        abort();
}

int main(int count, char **arguments)
{
    struct stat status;
    int file = count == 2 ? open(arguments[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &status))
        return 2;
    char *content = malloc((size_t)status.st_size);
    if (!content || !read_all(file, 0, content, (size_t)status.st_size))
        return 2;
    const char *at = content;
    const int64_t *head = (const int64_t *)take(&at, 4 * sizeof(int64_t));
    const size_t arrays = (size_t)head[0], tables = (size_t)head[2], chunks = (size_t)head[3];
    const int64_t *offsets = (const int64_t *)take(&at, arrays * 8), *others = (const int64_t *)take(&at, arrays * 8);
    const int64_t *sizes = (const int64_t *)take(&at, arrays * 8);
    const int64_t *first_chunks = (const int64_t *)take(&at, (arrays + 1) * 8);
    const int32_t *kinds = (const int32_t *)take(&at, arrays * 4), *tables_of = (const int32_t *)take(&at, arrays * 4);
    const float *values = (const float *)take(&at, tables * BINS * 4), *tiny = (const float *)take(&at, arrays * 4);
    int64_t *addresses = malloc(arrays * 8), *other_addresses = malloc(arrays * 8);
    int64_t *histograms = malloc(arrays * BINS * 8);
    int32_t *in_file = malloc(arrays * 4), *in_memory = malloc(arrays * 4);
    struct result *results = malloc(chunks * sizeof *results);
    struct comparison *comparisons = malloc(chunks * sizeof *comparisons);
    if (!addresses || !other_addresses || !histograms || !in_file || !in_memory || !results || !comparisons)
        return 2;
    for (size_t array = 0; array < arrays; array++) {
        size_t bytes = (size_t)(sizes[array] * item_bytes[kinds[array]]);
        addresses[array] = copied(content + offsets[array], bytes);
        other_addresses[array] = copied(content + others[array], bytes);
        in_file[array] = file, in_memory[array] = -1;
    }
    /* Each instruction set, with one thread and with three, from memory and from the file. */
    for (int set = 0; set < leafwise_instruction_sets(); set++)
        for (int way = 0; way < 2; way++) {
            memset(histograms, 0, arrays * BINS * 8);
            if (leafwise_measure((int64_t)arrays, head[1], way ? offsets : addresses, sizes, first_chunks,
                                 way ? in_file : NULL, kinds, tables_of, values, tiny, results, histograms, way ? 3 : 1,
                                 set) ||
                leafwise_compare((int64_t)arrays, head[1], way ? offsets : addresses, way ? others : other_addresses,
                                 sizes, first_chunks, way ? in_file : in_memory, way ? in_file : in_memory, kinds,
                                 tables_of, values, comparisons, 1, way ? 3 : 1, set))
                return 3;
            say(results, chunks * sizeof *results), say(histograms, arrays * BINS * 8);
            say(comparisons, chunks * sizeof *comparisons);
        }
    for (size_t array = 0; array < arrays; array++)
        free((void *)(intptr_t)addresses[array]), free((void *)(intptr_t)other_addresses[array]);
    void *held[] = {content, addresses, other_addresses, histograms, in_file, in_memory, results, comparisons};
    for (size_t number = 0; number < sizeof held / sizeof *held; number++)
        free(held[number]);
    return 0;
}
