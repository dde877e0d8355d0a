/* Lists the arrays in the header of a safetensors file, and the nodes that dotted names describe. See listing.py for
   how it is called; the references are `read` in files/formats/safetensors.py and `split` in core/dotted.py.

   Both functions return a negative number for anything unusual, and the reference then reads it, or says what is wrong
   with it. Texts are ASCII and shorter than 2 GiB, so that positions in them are 32-bit numbers. */

enum { UNUSUAL = -1 };

/* Distinct pieces of a text, numbered from 0 in the order in which they were added. */
struct words {
    const char *text;
    uint64_t seed;
    int64_t patience; /* steps in the table that are left; a text may be made so that all hashes collide */
    int32_t count, room;
    int32_t *starts, *lengths, *slots; /* there are twice as many slots as there is room: a number plus one, or 0 */
    uint64_t *hashes;
};

static uint64_t hash_of(const char *text, int32_t length, uint64_t seed)
{
    const uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = seed ^ (uint64_t)length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * factor;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, (size_t)length);
    hash = (hash ^ word) * factor;
    return hash ^ hash >> 32;
}

/* The slot of a piece of text, or the empty slot where it belongs; -1 if there are too many collisions. */
static int64_t slot_of(struct words *words, uint64_t hash, int32_t start, int32_t length)
{
    int64_t mask = 2 * (int64_t)words->room - 1, slot = (int64_t)(hash & (uint64_t)mask);
    for (words->patience += 16; words->patience > 0; words->patience--, slot = (slot + 1) & mask) {
        int32_t number = words->slots[slot] - 1;
        if (number < 0 || (words->hashes[number] == hash && words->lengths[number] == length &&
                           !memcmp(words->text + words->starts[number], words->text + start, (size_t)length)))
            return slot;
    }
    return -1;
}

static void free_words(struct words *words)
{
    free(words->starts), free(words->lengths), free(words->slots), free(words->hashes);
}

/* Makes room for twice as many words. Returns whether there was memory. */
static int grow_words(struct words *words)
{
    int32_t room = words->room ? 2 * words->room : 1024;
    size_t size = (size_t)room;
    if (words->room > INT32_MAX / 4)
        return 0;
    void *starts = realloc(words->starts, size * sizeof *words->starts);
    words->starts = starts ? starts : words->starts;
    void *lengths = realloc(words->lengths, size * sizeof *words->lengths);
    words->lengths = lengths ? lengths : words->lengths;
    void *hashes = realloc(words->hashes, size * sizeof *words->hashes);
    words->hashes = hashes ? hashes : words->hashes;
    free(words->slots);
    words->slots = calloc(2 * size, sizeof *words->slots);
    if (!starts || !lengths || !hashes || !words->slots)
        return 0;
    words->room = room;
    for (int32_t number = 0; number < words->count; number++) {
        int64_t slot = slot_of(words, words->hashes[number], words->starts[number], words->lengths[number]);
        if (slot < 0)
            return 0;
        words->slots[slot] = number + 1;
    }
    return 1;
}

/* The number of a piece of text, which is added if it is new; -1 if that is not possible. */
static int32_t word_number(struct words *words, int32_t start, int32_t length)
{
    if (words->count == words->room && !grow_words(words))
        return -1;
    uint64_t hash = hash_of(words->text + start, length, words->seed);
    int64_t slot = slot_of(words, hash, start, length);
    if (slot < 0)
        return -1;
    if (!words->slots[slot]) {
        int32_t number = words->count++;
        words->starts[number] = start;
        words->lengths[number] = length;
        words->hashes[number] = hash;
        words->slots[slot] = number + 1;
    }
    return words->slots[slot] - 1;
}

/* -- the header of a safetensors file ---------------------------------------------------------------------------- */

/* The JSON of a header. Each of the functions below reads one thing and returns whether it is there. */
struct json {
    const char *text;
    int32_t at, length;
    int32_t commas;  /* between the sizes of shapes */
    char plain[256]; /* whether a character may be in a string */
};

struct row {
    int64_t start, stop;
    int32_t dtype, dtype_length, shape, shape_length; /* where dtype and shape are in the text */
};

static void skip_spaces(struct json *json)
{
    while (json->at < json->length) {
        char sign = json->text[json->at];
        if (sign != ' ' && sign != '\n' && sign != '\t' && sign != '\r')
            return;
        json->at++;
    }
}

static int read_sign(struct json *json, char sign)
{
    skip_spaces(json);
    if (json->at >= json->length || json->text[json->at] != sign)
        return 0;
    json->at++;
    return 1;
}

/* Strings may have no escapes, only ASCII, and none of the signs whose number says how much memory the values of a JSON
   text need. */
static void set_plain(struct json *json)
{
    for (int sign = 0; sign < 256; sign++)
        json->plain[sign] = sign >= 0x20 && sign < 0x7f && !strchr("\"\\[{,", sign);
}

static int read_string(struct json *json, int32_t *start, int32_t *length)
{
    if (!read_sign(json, '"'))
        return 0;
    int32_t at = json->at;
    while (at < json->length && json->plain[(unsigned char)json->text[at]])
        at++;
    *start = json->at;
    *length = at - json->at;
    json->at = at + 1;
    return at < json->length && json->text[at] == '"';
}

/* A key, with its colon right behind it. */
static int read_key(struct json *json, int32_t *start, int32_t *length)
{
    return read_string(json, start, length) && json->at < json->length && json->text[json->at++] == ':';
}

static int read_number(struct json *json, int64_t *number)
{
    skip_spaces(json);
    int32_t first = json->at;
    for (*number = 0; json->at < json->length; json->at++) {
        unsigned digit = (unsigned)json->text[json->at] - '0';
        if (digit > 9)
            break;
        if (json->at - first == 18)
            return 0;
        *number = *number * 10 + digit;
    }
    /* What follows must be a sign, and not a fraction or an exponent; the caller checks that. */
    return json->at > first && (json->text[first] != '0' || json->at == first + 1);
}

/* A list of sizes. The place of its text is remembered, and read again only for shapes that are new. */
static int read_shape(struct json *json, struct row *row)
{
    int64_t size;
    if (!read_sign(json, '['))
        return 0;
    row->shape = json->at;
    if (!read_sign(json, ']')) {
        do {
            if (!read_number(json, &size))
                return 0;
        } while (read_sign(json, ',') && ++json->commas);
        if (!read_sign(json, ']'))
            return 0;
    }
    row->shape_length = json->at - 1 - row->shape;
    return 1;
}

static int is_word(const struct json *json, int32_t start, int32_t length, const char *word)
{
    return length == (int32_t)strlen(word) && !memcmp(json->text + start, word, (size_t)length);
}

/* The row of an array: dtype, shape and offsets, each once, in any order. */
static int read_row(struct json *json, struct row *row)
{
    int seen = 0;
    int32_t start, length;
    if (!read_sign(json, '{'))
        return 0;
    do {
        int field;
        if (!read_key(json, &start, &length))
            return 0;
        if (is_word(json, start, length, "dtype"))
            field = read_string(json, &row->dtype, &row->dtype_length) ? 1 : 0;
        else if (is_word(json, start, length, "shape"))
            field = read_shape(json, row) ? 2 : 0;
        else if (is_word(json, start, length, "data_offsets"))
            field = read_sign(json, '[') && read_number(json, &row->start) && read_sign(json, ',') &&
                            read_number(json, &row->stop) && read_sign(json, ']')
                        ? 4
                        : 0;
        else
            return 0;
        if (!field || seen & field)
            return 0;
        seen |= field;
    } while (read_sign(json, ','));
    return seen == 7 && read_sign(json, '}');
}

/* Steps over an object of strings, which may have escapes. */
static int skip_metadata(struct json *json)
{
    int in_string = 0;
    if (!read_sign(json, '{'))
        return 0;
    for (; json->at < json->length; json->at++) {
        char sign = json->text[json->at];
        if (in_string && sign == '\\')
            json->at++;
        else if (sign == '"')
            in_string = !in_string;
        else if (!in_string && sign == '{')
            return 0;
        else if (!in_string && sign == '}') {
            json->at++;
            return 1;
        }
    }
    return 0;
}

/* Writes dtype, number of bytes and sizes of a row, separated by spaces, but the first two by a tab, which no string
   contains. Returns the end. This is shorter than the row itself, and so are all of them together shorter than the
   header. */
static int32_t write_spec(const struct json *json, const struct row *row, char *specs, int32_t at)
{
    memcpy(specs + at, json->text + row->dtype, (size_t)row->dtype_length);
    at += row->dtype_length;
    specs[at++] = '\t';
    char digits[20];
    int count = 0;
    int64_t rest = row->stop - row->start;
    do
        digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (count)
        specs[at++] = digits[--count];
    int inside = 0;
    for (int32_t place = row->shape; place < row->shape + row->shape_length; place++) {
        char sign = json->text[place];
        int is_digit = sign >= '0' && sign <= '9';
        if (is_digit && !inside)
            specs[at++] = ' ';
        if (is_digit)
            specs[at++] = sign;
        inside = is_digit;
    }
    return at;
}

struct header_facts {
    int64_t rows, name_bytes, spec_bytes, commas, metadata_start, metadata_stop, end;
};

/* Reads the JSON of a header whose arrays are stored in its order, without gaps, under names that are all different.
   The header begins at a byte of the text, which is the beginning of the file, and fills the rest of it. For each
   array, writes its name and a newline to `names`, its start to `starts`, and to `spec_numbers` the number of its line
   in `specs`. There is room for `most` arrays, and as many bytes as the header has in `names` and `specs`. Metadata are
   left to the caller. */
int64_t leafwise_list_header(const char *text, int64_t length, int64_t start, int64_t most, uint64_t seed, char *names,
                             char *specs, int64_t *starts, int32_t *spec_numbers, struct header_facts *facts)
{
    if (length >= INT32_MAX || most >= INT32_MAX)
        return UNUSUAL;
    struct json json = {.text = text, .at = (int32_t)start, .length = (int32_t)length};
    set_plain(&json);
    struct words known = {.text = text, .seed = seed, .patience = 1024};
    struct words known_specs = {.text = specs, .seed = seed, .patience = 1024};
    struct header_facts found = {0, 0, 0, 0, -1, -1, 0};
    int64_t status = UNUSUAL;
    if (!read_sign(&json, '{'))
        goto done;
    do {
        struct row row;
        int32_t name, name_length;
        if (!read_key(&json, &name, &name_length))
            goto done;
        if (is_word(&json, name, name_length, "__metadata__")) {
            skip_spaces(&json);
            found.metadata_start = found.metadata_start < 0 ? json.at : INT64_MAX;
            if (found.metadata_start == INT64_MAX || !skip_metadata(&json))
                goto done;
            found.metadata_stop = json.at;
            continue;
        }
        if (found.rows == most || is_word(&json, name, name_length, "dtype") ||
            is_word(&json, name, name_length, "shape") || is_word(&json, name, name_length, "data_offsets"))
            goto done;
        if (!read_row(&json, &row) || row.start != found.end || row.stop < row.start)
            goto done;
        if (word_number(&known, name, name_length) != found.rows)
            goto done; /* the name occurs twice, or there is no memory */
        memcpy(names + found.name_bytes, text + name, (size_t)name_length);
        found.name_bytes += name_length;
        names[found.name_bytes++] = '\n';
        int32_t spec_start = (int32_t)found.spec_bytes, before = known_specs.count;
        int32_t spec_end = write_spec(&json, &row, specs, spec_start);
        int32_t spec = word_number(&known_specs, spec_start, spec_end - spec_start);
        if (spec < 0)
            goto done;
        if (known_specs.count > before) {
            specs[spec_end] = '\n';
            found.spec_bytes = spec_end + 1;
        }
        spec_numbers[found.rows] = spec;
        starts[found.rows++] = length + row.start;
        found.end = row.stop;
    } while (read_sign(&json, ','));
    if (!read_sign(&json, '}') || !found.rows)
        goto done;
    skip_spaces(&json);
    if (json.at != json.length)
        goto done;
    found.commas = json.commas;
    found.end += length;
    *facts = found;
    status = found.rows;
done:
    free_words(&known), free_words(&known_specs);
    return status;
}

/* -- dotted names ------------------------------------------------------------------------------------------------ */

/* The nodes of dotted names, in the order in which they are found. Prefixes end with their dot; node 0 is the root, and
   its prefix is empty. Each node has a list of places: a place is a row, or the number of rows plus a node. */
struct nodes {
    struct words prefixes, parts; /* parts: what is between two dots */
    int32_t rows, room;
    int32_t *parents, *depths, *names, *firsts, *lasts;
    int32_t *nexts; /* by place */
};

static int grow_nodes(struct nodes *nodes)
{
    int32_t room = nodes->room ? 2 * nodes->room : 1024;
    int32_t **columns[] = {&nodes->parents, &nodes->depths, &nodes->names, &nodes->firsts, &nodes->lasts};
    if (nodes->room > INT32_MAX / 4 || nodes->rows > INT32_MAX - room)
        return 0;
    for (int column = 0; column < 5; column++) {
        void *grown = realloc(*columns[column], (size_t)room * sizeof **columns[column]);
        if (!grown)
            return 0;
        *columns[column] = grown;
    }
    void *grown = realloc(nodes->nexts, ((size_t)room + (size_t)nodes->rows) * sizeof *nodes->nexts);
    if (!grown)
        return 0;
    nodes->nexts = grown;
    nodes->room = room;
    return 1;
}

static void free_nodes(struct nodes *nodes)
{
    free_words(&nodes->prefixes), free_words(&nodes->parts);
    free(nodes->parents), free(nodes->depths), free(nodes->names);
    free(nodes->firsts), free(nodes->lasts), free(nodes->nexts);
}

static void append_place(struct nodes *nodes, int32_t node, int32_t place)
{
    if (nodes->firsts[node] < 0)
        nodes->firsts[node] = place;
    else
        nodes->nexts[nodes->lasts[node]] = place;
    nodes->lasts[node] = place;
    nodes->nexts[place] = -1;
}

/* The length of what is before the last part of a name, with its dot. */
static int32_t length_above(const char *name, int32_t length)
{
    while (length && name[length - 1] != '.')
        length--;
    return length;
}

/* The most dots that names may have here; core/dotted.py has the same number. */
enum { MAX_DOTS = 200 };

/* The node of a prefix, which is made if it is new, and so are the nodes above it; -1 if that is not possible. */
static int32_t node_of(struct nodes *nodes, int32_t start, int32_t length, int64_t most)
{
    const char *text = nodes->prefixes.text + start;
    int32_t missing[MAX_DOTS], count = 0, node;
    for (;;) {
        int32_t known = nodes->prefixes.count;
        node = word_number(&nodes->prefixes, start, length);
        if (node < 0)
            return -1;
        if (node < known)
            break; /* the root, at the latest */
        /* The cost of a name that begins with a dot is counted differently. */
        if (node >= most || length == 1 || count == MAX_DOTS || (node >= nodes->room && !grow_nodes(nodes)))
            return -1;
        int32_t above = length_above(text, length - 1);
        nodes->names[node] = word_number(&nodes->parts, start + above, length - 1 - above);
        if (nodes->names[node] < 0)
            return -1;
        nodes->firsts[node] = -1;
        missing[count++] = node;
        length = above;
    }
    while (count) {
        int32_t below = missing[--count];
        nodes->parents[below] = node;
        nodes->depths[below] = nodes->depths[node] + 1;
        append_place(nodes, node, nodes->rows + below);
        node = below;
    }
    return nodes->depths[node] > MAX_DOTS ? -1 : node;
}

/* Finds the nodes of all names, each of which ends with a newline, and the last part of each name. */
static int find_nodes(struct nodes *nodes, int32_t length, int64_t most, int32_t *last_parts)
{
    const char *text = nodes->prefixes.text;
    if (!grow_nodes(nodes) || word_number(&nodes->prefixes, 0, 0) != 0)
        return 0;
    nodes->parents[0] = nodes->depths[0] = nodes->names[0] = 0;
    nodes->firsts[0] = -1;
    int32_t start = 0, node = 0, node_start = 0, node_length = 0;
    for (int32_t row = 0; row < nodes->rows; row++) {
        const char *end = start < length ? memchr(text + start, '\n', (size_t)(length - start)) : NULL;
        if (!end)
            return 0;
        int32_t stop = (int32_t)(end - text), prefix = length_above(text + start, stop - start);
        if (prefix != node_length || memcmp(text + start, text + node_start, (size_t)prefix)) {
            node = node_of(nodes, start, prefix, most);
            node_start = start, node_length = prefix;
        }
        if (node < 0 || (last_parts[row] = word_number(&nodes->parts, start + prefix, stop - start - prefix)) < 0)
            return 0;
        append_place(nodes, node, row);
        start = stop + 1;
    }
    return start == length;
}

/* The columns of a listing, in the order of a walk: for each row its position among the names, its node, and its last
   part; for each node below the root its parent, where its prefix is in the text, and its name; and where the parts are
   in the text. */
struct listing {
    int32_t *order, *row_nodes, *row_parts;
    int32_t *parents, *prefix_starts, *prefix_stops, *node_parts;
    int32_t *part_starts, *part_stops;
};

/* Writes the columns; returns whether the rows are in the order of the names. */
static int write_listing(const struct nodes *nodes, const int32_t *last_parts, int32_t *numbers,
                         const struct listing *listing)
{
    int32_t node = 0, place = nodes->firsts[0], row = 0, count = 0, in_order = 1;
    numbers[0] = 0;
    while (node || place >= 0) {
        if (place < 0) {
            place = nodes->nexts[nodes->rows + node];
            node = nodes->parents[node];
        } else if (place < nodes->rows) {
            listing->order[row] = place;
            in_order &= row == place;
            listing->row_nodes[row] = numbers[node];
            listing->row_parts[row++] = last_parts[place];
            place = nodes->nexts[place];
        } else {
            int32_t child = place - nodes->rows;
            listing->parents[count] = numbers[node];
            listing->prefix_starts[count] = nodes->prefixes.starts[child];
            listing->prefix_stops[count] = nodes->prefixes.starts[child] + nodes->prefixes.lengths[child];
            listing->node_parts[count] = nodes->names[child];
            numbers[child] = ++count;
            node = child;
            place = nodes->firsts[child];
        }
    }
    for (int32_t part = 0; part < nodes->parts.count; part++) {
        listing->part_starts[part] = nodes->parts.starts[part];
        listing->part_stops[part] = nodes->parts.starts[part] + nodes->parts.lengths[part];
    }
    return in_order;
}

struct split_facts {
    int64_t nodes, parts, prefix_bytes; /* without the root; without dots at the end of prefixes */
    int64_t in_order;                   /* whether the names are in the order of a walk */
};

/* Splits dotted names, each of which ends with a newline, into nodes. There is room for `most` nodes, and as many parts
   as there are rows and nodes. Returns the number of nodes below the root. */
int64_t leafwise_split_names(const char *text, int64_t length, int64_t rows, int64_t most, uint64_t seed,
                             const struct listing *listing, struct split_facts *facts)
{
    if (length >= INT32_MAX || rows < 1 || rows >= INT32_MAX / 2)
        return UNUSUAL;
    struct nodes nodes = {.prefixes = {.text = text, .seed = seed, .patience = 1024},
                          .parts = {.text = text, .seed = seed, .patience = 1024},
                          .rows = (int32_t)rows};
    int32_t *last_parts = malloc((size_t)rows * sizeof *last_parts), *numbers = NULL;
    int64_t status = UNUSUAL;
    if (!last_parts || !find_nodes(&nodes, (int32_t)length, most + 1, last_parts))
        goto done;
    facts->nodes = nodes.prefixes.count - 1;
    facts->parts = nodes.parts.count;
    facts->prefix_bytes = 0;
    for (int32_t node = 1; node <= facts->nodes; node++)
        facts->prefix_bytes += nodes.prefixes.lengths[node] - 1;
    numbers = malloc((size_t)nodes.prefixes.count * sizeof *numbers);
    if (!numbers)
        goto done;
    facts->in_order = write_listing(&nodes, last_parts, numbers, listing);
    status = facts->nodes;
done:
    free(last_parts), free(numbers);
    free_nodes(&nodes);
    return status;
}
