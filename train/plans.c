#include "train/plans.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/output.h"
#include "partition/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the file --------------------------------------------------------------------------------- */

static void name_file(const tr_config *config, char path[TR_CONFIG_PATH + 16]) {
    (void)snprintf(path, TR_CONFIG_PATH + 16, "%s/plans.txt", config->log.dir);
}

/* Reads the file into *text, malloc'd; *length is 0 when there is none. */
static tr_status load_file(const char *path, char **text, size_t *length) {
    const tr_input_limit limit = {.mib = 1, .failure = TR_ERR_DATA};
    tr_status status = tr_input_load("the plans of operators", path, limit, text, length);
    if (status != TR_ERR_NOFILE) return status;
    tr_error_clear();
    return TR_OK;
}

/* Gives every rank the plans of rank 0's file. Collective. */
static tr_status read_file(tr_world *world, const tr_config *config, tr_plan_book *book) {
    const bool first = tr_world_rank(world) == 0;
    char path[TR_CONFIG_PATH + 16], *text = NULL;
    size_t length = 0;
    name_file(config, path);
    tr_status status = first ? load_file(path, &text, &length) : TR_OK;
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_broadcast(world, 0, &length, sizeof length));
    if (length == 0) goto out;
    if (!first) status = tr_calloc(length, 1, &text);
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_broadcast(world, 0, text, length));
    TR_TRY_OUT(tr_world_agree(world, tr_plan_book_read(book, text, length, path)));
out:
    free(text);
    return status;
}

tr_status tr_plans_write(const tr_plans *plans, const tr_config *config) {
    char path[TR_CONFIG_PATH + 16], temporary[TR_CONFIG_PATH + 24], *text;
    FILE *f;
    if (!plans->book || tr_plan_book_count(plans->book) == 0) return TR_OK;
    name_file(config, path);
    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    TR_TRY(tr_plan_book_print(plans->book, &text));
    tr_status status = tr_output_open_for(path, temporary, &f);
    if (status == TR_OK) {
        (void)fputs(text, f);
        status = tr_output_replace(temporary, path, f, TR_OK);
    }
    free(text);
    return status;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* A rank's operators: what their plans are chosen for, and by. */
typedef struct settling {
    tr_world *world;
    tr_plan_book *book;    /* of the run */
    tr_op_context context; /* of this rank's operators */
} settling;

/* Notes which operators of this rank the book lacks, by preparing its layers without running
 * them. */
static tr_status note_wanted(settling *s, tr_device *device, const tr_layout_desc *desc) {
    const tr_op_context common = {.device = device, .choice = TR_OP_RECORDED, .book = s->book};
    const int units = tr_world_receive_units(s->world), pp_rank = desc->mesh.index[TR_AXIS_PP];
    tr_layout *layout;
    TR_TRY(tr_layout_create(desc, &layout));
    s->context = tr_layout_context(layout, &common, units, pp_rank);
    tr_status status = tr_layout_prepare(layout, &common, units, NULL, pp_rank);
    tr_layout_destroy(layout);
    return status;
}

/* Lists the wanted descriptions in *text, malloc'd: "\n", then each with "\n" at its end. */
static tr_status print_wanted(const tr_plan_book *book, char **text) {
    size_t bytes = 2;
    const char *key;
    for (int i = 0; tr_plan_book_wanted(book, i, &key); i++) bytes += strlen(key) + 1;
    TR_TRY(tr_calloc(bytes, 1, text));
    char *at = *text + sprintf(*text, "\n");
    for (int i = 0; tr_plan_book_wanted(book, i, &key); i++) at += sprintf(at, "%s\n", key);
    return TR_OK;
}

/* Measures the plans that this rank wants and no lower rank does, and adds them to `mine`. lower:
 * the texts of the lower ranks. */
static tr_status measure(const settling *s, const char *lower, tr_plan_book *mine) {
    tr_op_context context = s->context;
    const tr_op_desc *desc;
    const char *key;
    context.choice = TR_OP_MEASURED;
    context.book = mine;
    for (int i = 0; (desc = tr_plan_book_wanted(s->book, i, &key)); i++) {
        char line[TR_PLAN_KEY + 2];
        tr_op *op;
        (void)snprintf(line, sizeof line, "\n%s\n", key);
        if (strstr(lower, line)) continue;
        TR_TRY(tr_op_prepare(&context, desc, &op));
        tr_op_release(op);
    }
    return TR_OK;
}

/* Gathers the ranks' texts, which `status` says whether this rank has. Collective. */
static tr_status gather(tr_world *world, tr_status status, const char *mine, char **all,
                        size_t *sizes) {
    TR_TRY(tr_world_agree(world, status));
    return tr_world_gather_all_v(world, mine, strlen(mine), (void **)all, sizes);
}

/* Adds the plans of all ranks' books `mine` to the run's. Collective. */
static tr_status share(const settling *s, tr_status status, const tr_plan_book *mine,
                       size_t *sizes) {
    char *text = NULL, *all = NULL;
    size_t at = 0;
    if (status == TR_OK) status = tr_plan_book_print(mine, &text);
    TR_TRY_OUT(gather(s->world, status, text, &all, sizes));
    for (int r = 0; r < tr_world_size(s->world) && status == TR_OK; at += sizes[r++])
        status = tr_plan_book_read(s->book, all + at, sizes[r], "the measured plans of a rank");
    TR_TRY_OUT(tr_world_agree(s->world, status));
out:
    free(text);
    free(all);
    return status;
}

/* Measures what the ranks want, each description on the lowest of the ranks that want it.
 * Collective. */
static tr_status measure_wanted(const settling *s, size_t *sizes) {
    tr_plan_book *mine = NULL;
    char *text = NULL, *all = NULL;
    size_t lower = 0;
    tr_status status = tr_plan_book_create(&mine);
    if (status == TR_OK) status = print_wanted(s->book, &text);
    TR_TRY_OUT(gather(s->world, status, text, &all, sizes));
    for (int r = 0; r < tr_world_rank(s->world); r++) lower += sizes[r];
    all[lower] = '\0'; /* of this rank's own text, which is not empty */
    TR_TRY_OUT(share(s, measure(s, all, mine), mine, sizes));
out:
    free(text);
    free(all);
    tr_plan_book_destroy(mine);
    return status;
}

/* Sets *refused where a rank has refused a plan. Collective. */
static tr_status gather_refused(const settling *s, size_t *each, bool *refused) {
    const size_t mine = (size_t)tr_plan_book_refused(s->book);
    TR_TRY(tr_world_gather_all(s->world, &mine, each, sizeof mine));
    for (int r = 0; r < tr_world_size(s->world); r++) *refused |= each[r] > 0;
    return TR_OK;
}

tr_status tr_plans_settle(tr_world *world, const tr_config *config, tr_device *device,
                          const tr_mesh *mesh, const tr_orders *orders, bool resumes,
                          tr_plans *out) {
    *out = (tr_plans){0};
    if (config->train.deterministic) return TR_OK;
    const tr_layout_desc desc = tr_request_layout(config, orders, mesh);
    size_t *sizes = NULL;
    tr_status status = tr_calloc((size_t)tr_world_size(world), sizeof *sizes, &sizes);
    if (status == TR_OK) status = tr_plan_book_create(&out->book);
    TR_TRY_OUT(tr_world_agree(world, status));
    settling s = {.world = world, .book = out->book};
    if (resumes) TR_TRY_OUT(read_file(world, config, out->book));
    out->read = tr_plan_book_count(out->book);
    TR_TRY_OUT(tr_world_agree(world, note_wanted(&s, device, &desc)));
    TR_TRY_OUT(gather_refused(&s, sizes, &out->refused));
    TR_TRY_OUT(measure_wanted(&s, sizes));
    out->measured = tr_plan_book_count(out->book) - out->read;
out:
    free(sizes);
    return status;
}

void tr_plans_text(const tr_plans *plans, char *text, size_t size) {
    if (size > 0) text[0] = '\0';
    if (plans->read && plans->measured)
        (void)snprintf(text, size, "%d read from plans.txt, %d measured", plans->read,
                       plans->measured);
    else if (plans->read) (void)snprintf(text, size, "%d read from plans.txt", plans->read);
    else if (plans->measured) (void)snprintf(text, size, "%d measured", plans->measured);
}
