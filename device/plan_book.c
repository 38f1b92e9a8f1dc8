#include "device/plan_book.h"

#include "base/memory.h"
#include "base/text.h"
#include "device/op_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HEADER[] = "trireme plans 1", BETWEEN[] = " = ";
static const char REMEDY[] = "restore the file, or remove it to have the plans measured again";

typedef struct entry {
    char *key, *plan; /* plan: NULL of a noted description */
} entry;

typedef struct table {
    entry *entry;
    size_t count, capacity;
} table;

struct tr_plan_book {
    table known;      /* in the order of the keys */
    table wanted;     /* in the order of the notes */
    tr_op_desc *desc; /* [wanted.count] */
    size_t desc_capacity;
    int refused;
};

tr_status tr_plan_book_create(tr_plan_book **out) {
    return tr_calloc(1, sizeof **out, out);
}

static void free_table(table *t) {
    for (size_t i = 0; i < t->count; i++) {
        free(t->entry[i].key);
        free(t->entry[i].plan);
    }
    free(t->entry);
}

void tr_plan_book_destroy(tr_plan_book *book) {
    if (!book) return;
    free_table(&book->known);
    free_table(&book->wanted);
    free(book->desc);
    free(book);
}

void tr_plan_key(const tr_op_context *context, const tr_op_desc *desc, char *text, size_t size) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    text[0] = '\0';
    if (!row->text) return;
    tr_text_add(text, size, "%s", row->name);
    row->text(desc, text, size);
    if (context->compute_units) tr_text_add(text, size, " units %d", context->compute_units);
    if (context->workspace) tr_text_add(text, size, " workspace %zu", context->workspace);
}

/* --- entries ---------------------------------------------------------------------------------- */

/* Returns the index of the first key that is not before `key`. */
static size_t place_of(const table *known, const char *key) {
    size_t from = 0, to = known->count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (strcmp(known->entry[middle].key, key) < 0) from = middle + 1;
        else to = middle;
    }
    return from;
}

static bool has_at(const table *known, size_t at, const char *key) {
    return at < known->count && strcmp(known->entry[at].key, key) == 0;
}

const char *tr_plan_book_find(const tr_plan_book *book, const char *key) {
    const size_t at = place_of(&book->known, key);
    return has_at(&book->known, at, key) ? book->known.entry[at].plan : NULL;
}

/* Copies the texts to entry `at`, before which those after it move up. */
static tr_status insert(table *t, size_t at, const char *key, const char *plan) {
    entry made = {0};
    TR_TRY(tr_grow(&t->entry, &t->capacity, t->count + 1, sizeof *t->entry));
    tr_status status = tr_strdup(key, &made.key);
    if (status == TR_OK && plan) status = tr_strdup(plan, &made.plan);
    if (status != TR_OK) {
        free(made.key);
        return status;
    }
    memmove(&t->entry[at + 1], &t->entry[at], (t->count - at) * sizeof *t->entry);
    t->entry[at] = made;
    t->count++;
    return TR_OK;
}

tr_status tr_plan_book_add(tr_plan_book *book, const char *key, const char *plan) {
    const size_t at = place_of(&book->known, key);
    if (has_at(&book->known, at, key)) return TR_FAIL(TR_ERR_INTERNAL, "two plans for %s", key);
    return insert(&book->known, at, key, plan);
}

int tr_plan_book_count(const tr_plan_book *book) {
    return (int)book->known.count;
}

tr_status tr_plan_book_want(tr_plan_book *book, const char *key, const tr_op_desc *desc) {
    table *t = &book->wanted;
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->entry[i].key, key) == 0) return TR_OK;
    TR_TRY(tr_grow(&book->desc, &book->desc_capacity, t->count + 1, sizeof *book->desc));
    book->desc[t->count] = *desc;
    return insert(t, t->count, key, NULL);
}

const tr_op_desc *tr_plan_book_wanted(const tr_plan_book *book, int index, const char **key) {
    if ((size_t)index >= book->wanted.count) return NULL;
    *key = book->wanted.entry[index].key;
    return &book->desc[index];
}

void tr_plan_book_refuse(tr_plan_book *book) {
    book->refused++;
}

int tr_plan_book_refused(const tr_plan_book *book) {
    return book->refused;
}

/* --- text ------------------------------------------------------------------------------------- */

tr_status tr_plan_book_print(const tr_plan_book *book, char **text) {
    size_t bytes = sizeof HEADER + 1;
    for (size_t i = 0; i < book->known.count; i++)
        bytes += strlen(book->known.entry[i].key) + sizeof BETWEEN +
                 strlen(book->known.entry[i].plan) + 1;
    TR_TRY(tr_calloc(bytes, 1, text));
    char *at = *text + sprintf(*text, "%s\n", HEADER);
    for (size_t i = 0; i < book->known.count; i++)
        at += sprintf(at, "%s%s%s\n", book->known.entry[i].key, BETWEEN, book->known.entry[i].plan);
    return TR_OK;
}

/* Returns true when the text begins with the name of an operator and a space. */
static bool names_operator(const char *key) {
    for (int kind = 0; kind < TR_OP_COUNT; kind++) {
        const char *name = tr_op_name((tr_op_kind)kind);
        if (strncmp(key, name, strlen(name)) == 0 && key[strlen(name)] == ' ') return true;
    }
    return false;
}

/* Adds the plan of one line, which it cuts in two. Returns the line's fault, or NULL; *status is
 * this function's own failure. */
static const char *read_line(tr_plan_book *book, char *line, tr_status *status) {
    char *plan = strstr(line, BETWEEN);
    if (!plan) return "it has no \" = \" between a description and a plan";
    *plan = '\0';
    plan += strlen(BETWEEN);
    if (!names_operator(line)) return "it does not begin with the name of an operator";
    if (strlen(line) >= TR_PLAN_KEY) return "its description is too long";
    if (!plan[0] || strchr(plan, ' ')) return "a plan's name is one word";
    if (strlen(plan) >= TR_PLAN_NAME) return "its plan's name is too long";
    if (tr_plan_book_find(book, line)) return "its description has a plan already";
    *status = tr_plan_book_add(book, line, plan);
    return NULL;
}

/* Returns the first fault of the characters of a line, or NULL. */
static const char *fault_of(const char *line, size_t length) {
    if (length >= TR_PLAN_KEY + sizeof BETWEEN + TR_PLAN_NAME) return "it is too long";
    for (size_t i = 0; i < length; i++)
        if (line[i] < ' ' || line[i] > '~') return "it has a character that is not printable ASCII";
    return NULL;
}

tr_status tr_plan_book_read(tr_plan_book *book, const char *text, size_t length, const char *name) {
    size_t number = 0;
    do {
        const char *end = memchr(text, '\n', length);
        const size_t bytes = end ? (size_t)(end - text) : length;
        const char *fault = fault_of(text, bytes);
        char line[TR_PLAN_KEY + sizeof BETWEEN + TR_PLAN_NAME];
        tr_status status = TR_OK;
        number++;
        if (!fault) {
            memcpy(line, text, bytes);
            line[bytes] = '\0';
        }
        if (!fault && !end) fault = "the line does not end: the file was cut off";
        else if (!fault && number > 1) fault = read_line(book, line, &status);
        else if (!fault && strcmp(line, HEADER) != 0) fault = "it must be \"trireme plans 1\"";
        TR_TRY(status);
        if (fault) return TR_FAIL(TR_ERR_DATA, "%s:%zu: %s (%s)", name, number, fault, REMEDY);
        length -= bytes + 1;
        text = end + 1;
    } while (length > 0);
    return TR_OK;
}
