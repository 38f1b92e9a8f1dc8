#include "device/cpu/onednn.h"

const int tr_onednn_argument[TR_ONEDNN_OPERANDS] = {
    DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS,
    DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1};

/* --- descriptions of memory: values in version 2, objects in version 3 ------------------------ */

#if DNNL_VERSION_MAJOR < 3
typedef dnnl_memory_desc_t memory_desc;
typedef const dnnl_memory_desc_t *memory_view;
static memory_view view_of(const memory_desc *desc) {
    return desc;
}
static dnnl_status_t make(memory_desc *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                          const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}
static void destroy(memory_desc *desc) {
    (void)desc;
}
#else
typedef dnnl_memory_desc_t memory_desc;
typedef const_dnnl_memory_desc_t memory_view;
static memory_view view_of(const memory_desc *desc) {
    return *desc;
}
static dnnl_status_t make(memory_desc *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                          const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}
static void destroy(memory_desc *desc) {
    (void)dnnl_memory_desc_destroy(*desc);
}
#endif

static dnnl_status_t describe(const tr_onednn_matrix *x, memory_desc *out) {
    const dnnl_dims_t dims = {x->rows, x->columns};
    const dnnl_dims_t strides = {x->transposed ? 1 : x->ld, x->transposed ? x->ld : 1};
    return make(out, dims, x->dtype == TR_BF16 ? dnnl_bf16 : dnnl_f32, strides);
}

tr_status tr_onednn_view(const tr_onednn_matrix *x, dnnl_engine_t engine, dnnl_memory_t *out) {
    memory_desc desc;
    TR_DNNL(describe(x, &desc));
    const dnnl_status_t made = dnnl_memory_create(out, view_of(&desc), engine, DNNL_MEMORY_NONE);
    destroy(&desc);
    TR_DNNL(made);
    return TR_OK;
}

tr_status tr_onednn_scratch_view(const_dnnl_primitive_desc_t implementation, dnnl_engine_t engine,
                                 size_t *bytes, dnnl_memory_t *out) {
    const memory_view scratch =
        dnnl_primitive_desc_query_md(implementation, dnnl_query_scratchpad_md, 0);
    *bytes = dnnl_memory_desc_get_size(scratch);
    TR_DNNL(dnnl_memory_create(out, scratch, engine, DNNL_MEMORY_NONE));
    return TR_OK;
}

/* --- implementations of a product ------------------------------------------------------------- */

const char *tr_onednn_name(const_dnnl_primitive_desc_t implementation) {
    const char *name = "";
    (void)dnnl_primitive_desc_query(implementation, dnnl_query_impl_info_str, 0, &name);
    return name;
}

#if DNNL_VERSION_MAJOR < 3
static dnnl_status_t set_scale(dnnl_primitive_attr_t attr, dnnl_post_ops_t post_ops, float scale) {
    (void)post_ops;
    return dnnl_primitive_attr_set_output_scales(attr, 1, 0, &scale);
}
static dnnl_status_t append_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f);
}
static dnnl_status_t begin_list(tr_onednn_list *list, dnnl_engine_t engine, memory_view src,
                                memory_view weights, memory_view bias, memory_view dst,
                                dnnl_primitive_attr_t attr) {
    const dnnl_status_t described = dnnl_matmul_desc_init(&list->matmul, src, weights, bias, dst);
    if (described != dnnl_success) return described;
    if (dnnl_primitive_desc_iterator_create(&list->iterator, &list->matmul, attr, engine, NULL) ==
        dnnl_success)
        list->current = dnnl_primitive_desc_iterator_fetch(list->iterator);
    return dnnl_success;
}
void tr_onednn_list_next(tr_onednn_list *list) {
    dnnl_primitive_desc_destroy(list->current);
    list->current = dnnl_primitive_desc_iterator_next(list->iterator) == dnnl_success
                        ? dnnl_primitive_desc_iterator_fetch(list->iterator)
                        : NULL;
}
dnnl_primitive_desc_t tr_onednn_list_take(const tr_onednn_list *list) {
    return list->current ? dnnl_primitive_desc_iterator_fetch(list->iterator) : NULL;
}
void tr_onednn_list_close(tr_onednn_list *list) {
    if (list->current) dnnl_primitive_desc_destroy(list->current);
    if (list->iterator) dnnl_primitive_desc_iterator_destroy(list->iterator);
    *list = (tr_onednn_list){0};
}
#else
static dnnl_status_t set_scale(dnnl_primitive_attr_t attr, dnnl_post_ops_t post_ops, float scale) {
    (void)attr;
    return dnnl_post_ops_append_eltwise(post_ops, dnnl_eltwise_linear, scale, 0.0f);
}
static dnnl_status_t append_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t begin_list(tr_onednn_list *list, dnnl_engine_t engine, memory_view src,
                                memory_view weights, memory_view bias, memory_view dst,
                                dnnl_primitive_attr_t attr) {
    const dnnl_status_t found =
        dnnl_matmul_primitive_desc_create(&list->current, engine, src, weights, bias, dst, attr);
    if (found != dnnl_success) list->current = NULL;
    return found == dnnl_unimplemented ? dnnl_success : found;
}
void tr_onednn_list_next(tr_onednn_list *list) {
    if (dnnl_primitive_desc_next_impl(list->current) != dnnl_success) tr_onednn_list_close(list);
}
dnnl_primitive_desc_t tr_onednn_list_take(const tr_onednn_list *list) {
    dnnl_primitive_desc_t copy = NULL;
    if (list->current && dnnl_primitive_desc_clone(&copy, list->current) != dnnl_success)
        return NULL;
    return copy;
}
void tr_onednn_list_close(tr_onednn_list *list) {
    if (list->current) dnnl_primitive_desc_destroy(list->current);
    *list = (tr_onednn_list){0};
}
#endif

/* Sets what happens to the sums before they are stored, and that scratch is the caller's. */
static dnnl_status_t set_attributes(const tr_onednn_matmul *matmul, memory_view residual,
                                    dnnl_post_ops_t post_ops, dnnl_primitive_attr_t attr) {
    dnnl_status_t done = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (done == dnnl_success && matmul->scale != 0) done = set_scale(attr, post_ops, matmul->scale);
    if (done == dnnl_success && residual)
        done = dnnl_post_ops_append_binary(post_ops, dnnl_binary_add, residual);
    if (done == dnnl_success && matmul->adds) done = append_sum(post_ops);
    return done == dnnl_success ? dnnl_primitive_attr_set_post_ops(attr, post_ops) : done;
}

tr_status tr_onednn_list_open(const tr_onednn_matmul *matmul, dnnl_engine_t engine,
                              tr_onednn_list *list) {
    memory_desc desc[TR_ONEDNN_OPERANDS];
    memory_view view[TR_ONEDNN_OPERANDS] = {NULL};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t done = dnnl_success;
    *list = (tr_onednn_list){0};
    for (int i = 0; i < TR_ONEDNN_OPERANDS && done == dnnl_success; i++) {
        if (!matmul->operand[i]) continue;
        done = describe(matmul->operand[i], &desc[i]);
        if (done == dnnl_success) view[i] = view_of(&desc[i]);
    }
    if (done == dnnl_success) done = dnnl_primitive_attr_create(&attr);
    if (done == dnnl_success) done = dnnl_post_ops_create(&post_ops);
    if (done == dnnl_success)
        done = set_attributes(matmul, view[TR_ONEDNN_RESIDUAL], post_ops, attr);
    if (done == dnnl_success)
        done = begin_list(list, engine, view[TR_ONEDNN_SRC], view[TR_ONEDNN_WEIGHTS],
                          view[TR_ONEDNN_BIAS], view[TR_ONEDNN_DST], attr);
    for (int i = 0; i < TR_ONEDNN_OPERANDS; i++)
        if (view[i]) destroy(&desc[i]);
    if (post_ops) (void)dnnl_post_ops_destroy(post_ops);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    if (done == dnnl_success) return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "oneDNN: the product could not be described: %s",
                   dnnl_status2str(done));
}
