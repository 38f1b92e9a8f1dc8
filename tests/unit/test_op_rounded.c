/* Compares UPDATE, DIRECTION and DESCEND of narrow operands with the same step in FP32 between
 * conversions, bit for bit and on every device. CAST and QUANTIZE convert BF16 operands, and
 * base/code8.h converts states of 8 bits. Covers all rules, sets of narrow operands and types of
 * values, boxes of odd widths and elements from their middle on, operands off the alignment of
 * packs, directions in the gradient's memory, steps with and without clips, penalties and decay,
 * numbers that are not finite, and a step that is skipped. */
#include "base/philox.h"
#include "device/op.h"
#include "support/must.h"
#include "support/seed.h"

#include <string.h>

enum {
    MOST = 20000,
    OPERANDS = TR_UPDATE_V_SCALES + 1,
    USE = 2 * TR_ROUNDING_USES,
    SAMPLE = 3,
    BEYOND = 16
};

static uint64_t seed;
static tr_device *device;
static float normal[OPERANDS][MOST + BEYOND]; /* drawn once, for every case */

/* A case, and the memory of its operands. */
typedef struct rounded {
    tr_op_kind kind;
    tr_update_desc d;
    int64_t element;
    tr_step_state state;
    int shift;              /* bytes from the memory's begin to each operand's */
    bool in_place;          /* the direction is in the gradient's memory */
    void *memory[OPERANDS]; /* of MOST + BEYOND numbers of 32 bits */
} rounded;

static void open_memory(rounded *r) {
    for (int k = 0; k < OPERANDS; k++)
        must(tr_device_alloc(device, TR_MEMORY_DATA, (MOST + BEYOND) * sizeof(float),
                             &r->memory[k]));
}

static void close_memory(rounded *r) {
    for (int k = 0; k < OPERANDS; k++) tr_device_free(device, r->memory[k]);
}

static bool is_state(int operand) {
    return operand == TR_UPDATE_M || operand == TR_UPDATE_V;
}

static bool is_code(const rounded *r, int operand) {
    return is_state(operand) && r->d.state_dtype == TR_U8;
}

static bool is_bf16(const rounded *r, int operand) {
    if (operand == TR_UPDATE_GRAD) return r->d.bf16_grad && r->kind != TR_OP_DESCEND;
    if (operand == TR_UPDATE_MASTER) return r->d.bf16_master;
    return is_state(operand) && r->d.state_dtype == TR_BF16;
}

static void draw_normal(void) {
    for (int k = 0; k < OPERANDS; k++)
        for (int i = 0; i < MOST + BEYOND; i++)
            normal[k][i] = tr_normal(seed, (uint64_t)k, (uint64_t)i);
}

/* Fills operands with normal numbers, or their squares, of which some are not numbers. */
static void fill(rounded *r) {
    static const float odd[] = {0, -0.0f, 0x1p-140f, 3e38f, 1e-30f};
    const float ones = tr_bits_float(0x7fffffff); /* a NaN; adding to it carries to the sign */
    for (int k = 0; k < OPERANDS; k++)
        for (int i = 0; i < MOST + BEYOND; i++) {
            float x = normal[k][i];
            if (k == TR_UPDATE_M && r->d.rule == TR_UPDATE_ROOT) x *= x;
            if (k == TR_UPDATE_V) x *= x;
            if (i % 97 == 5 + k) x = odd[i % 5];
            if (i % 1001 == 13 && k == TR_UPDATE_GRAD) x = i % 2 ? ones : INFINITY;
            if (k >= TR_UPDATE_M_SCALES) x = exp2f((float)(i % 40 - 20)); /* powers of two */
            if (is_code(r, k)) ((uint8_t *)r->memory[k])[i] = (uint8_t)(i * 37 % 241);
            else if (is_bf16(r, k)) ((uint16_t *)r->memory[k])[i] = tr_f32_to_bf16(x);
            else ((float *)r->memory[k])[i] = x;
        }
}

/* Runs an operator on operands of these types; `element` as in args. */
static void run(const rounded *r, tr_op_desc desc, void *const *memory) {
    tr_op *op;
    tr_op_args args = {
        .state = (tr_step_state *)&r->state, .element = r->element, .sample = SAMPLE};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op));
    tr_op_operands(&desc, args.t);
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++)
        args.t[k].data = args.t[k].rank ? (char *)memory[k] + r->shift : NULL;
    must(tr_op_run(op, tr_device_compute(device), &args));
    must(tr_stream_sync(tr_device_compute(device)));
    tr_op_release(op);
}

/* Describes the step, and gives it its operands. */
static tr_op_desc step_of(const rounded *r, void *const *memory, void **own) {
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++) own[k] = k < OPERANDS ? memory[k] : NULL;
    if (r->in_place) own[TR_UPDATE_U] = memory[TR_UPDATE_GRAD];
    if (r->kind != TR_OP_DESCEND) return (tr_op_desc){.kind = r->kind, .update = r->d};
    own[TR_DESCEND_U] = memory[TR_UPDATE_GRAD];
    own[TR_DESCEND_MASTER] = memory[TR_UPDATE_MASTER];
    own[TR_DESCEND_VALUE] = memory[TR_UPDATE_VALUE];
    return (tr_op_desc){.kind = TR_OP_DESCEND,
                        .descend = {.count = r->d.count,
                                    .lr_scale = r->d.lr_scale,
                                    .factor = 0.7,
                                    .weight_decay = r->d.weight_decay,
                                    .dtype = r->d.dtype,
                                    .bf16_master = r->d.bf16_master,
                                    .rounding = r->d.rounding}};
}

/* Decodes a state, or encodes it with the bits of each element. */
static void recode(const rounded *r, int operand, float *memory, bool encodes) {
    const int k = operand - TR_UPDATE_M, words = r->shift / (int)sizeof(float);
    uint8_t *codes = (uint8_t *)r->memory[operand] + r->shift;
    float *scales = (float *)r->memory[TR_UPDATE_M_SCALES + k] + words, *wide = memory + words;
    const tr_quantize_desc *d = &r->d.rounding;
    for (int64_t at = 0; at < r->d.count; at += TR_CODE8_BLOCK) {
        const int64_t end = at + TR_CODE8_BLOCK < r->d.count ? at + TR_CODE8_BLOCK : r->d.count;
        float *scale = &scales[at / TR_CODE8_BLOCK], largest = 0;
        for (int64_t i = at; i < end; i++) largest = fmaxf(largest, fabsf(wide[i]));
        if (encodes) *scale = tr_code8_scale(largest);
        for (int64_t i = at; i < end; i++) {
            const int64_t from = r->element + i, row = from / d->box[0].ld,
                          col = from % d->box[0].ld;
            const tr_quantize_box *box = &d->box[col >= d->box[0].cols];
            const uint64_t place = (uint64_t)(box->first + row * box->step + col - box->begin);
            const tr_philox bits =
                tr_rounding_bits(tr_rounding_key(r->state.seed, box->name, USE + k), place / 8,
                                 tr_rounding_counter(r->state.step, SAMPLE));
            const uint32_t draw = tr_code8_draw(
                tr_rounding_draw(tr_philox_half(bits, (int64_t)(place % 8)), USE + k));
            if (encodes) codes[i] = tr_code8_encode(wide[i], *scale, r->d.code[k], draw);
            else wide[i] = tr_code8_decode(codes[i], *scale, r->d.code[k]);
        }
    }
}

/* The same with operators that widen and round. */
static void in_parts(const rounded *r, rounded *wide) {
    rounded f32 = *r;
    void *own[TR_OP_MAX_TENSORS];
    f32.d.bf16_grad = f32.d.bf16_master = false;
    f32.d.state_dtype = TR_F32;
    if (r->d.bf16_master) f32.d.dtype = TR_F32;
    for (int k = 0; k < OPERANDS; k++) {
        void *cast[TR_OP_MAX_TENSORS] = {r->memory[k], wide->memory[k]};
        f32.memory[k] = is_bf16(r, k) || is_code(r, k) ? wide->memory[k] : r->memory[k];
        if (is_code(r, k)) recode(r, k, wide->memory[k], false);
        if (is_bf16(r, k))
            run(r,
                (tr_op_desc){
                    .kind = TR_OP_CAST,
                    .rows = {.rows = 1, .width = r->d.count, .dtype = TR_BF16, .to = TR_F32}},
                cast);
    }
    if (r->d.bf16_master) f32.memory[TR_UPDATE_VALUE] = f32.memory[TR_UPDATE_MASTER];
    const tr_op_desc step = step_of(&f32, f32.memory, own);
    run(r, step, own);
    for (int k = TR_UPDATE_MASTER; k <= TR_UPDATE_V; k++) {
        void *quantize[TR_OP_MAX_TENSORS] = {wide->memory[k], r->memory[k]};
        tr_op_desc desc = {.kind = TR_OP_QUANTIZE, .quantize = r->d.rounding};
        desc.quantize.use = k == TR_UPDATE_MASTER ? USE + 2 : USE + k - TR_UPDATE_M;
        const bool steps =
            k == TR_UPDATE_MASTER
                ? r->kind != TR_OP_DIRECTION
                : r->kind != TR_OP_DESCEND && k - TR_UPDATE_M < tr_update_states(r->d.rule);
        if (is_bf16(r, k) && steps) run(r, desc, quantize);
        if (is_code(r, k) && steps && !r->state.skip) recode(r, k, wide->memory[k], true);
    }
}

static void compare(const rounded *got, const rounded *want) {
    for (int k = 0; k < OPERANDS; k++)
        for (int64_t i = 0; i < MOST + BEYOND; i++) {
            const uint32_t *a = got->memory[k], *b = want->memory[k];
            if (a[i] != b[i])
                fail_msg("operator %s, rule %d, count %d from %d, shift %d, bf16 %d %d, states %s, "
                         "value %s, skip %d: word %d of operand %d is %08x, not %08x (seed %llu)",
                         tr_op_name(got->kind), got->d.rule, (int)got->d.count, (int)got->element,
                         got->shift, got->d.bf16_grad, got->d.bf16_master,
                         tr_dtype_name(got->d.state_dtype), tr_dtype_name(got->d.dtype),
                         got->state.skip, (int)i, k, a[i], b[i], (unsigned long long)seed);
        }
}

static void check(rounded *r, rounded *parts, rounded *wide) {
    void *own[TR_OP_MAX_TENSORS];
    fill(r);
    parts->kind = r->kind, parts->d = r->d, parts->element = r->element, parts->state = r->state;
    parts->shift = r->shift, parts->in_place = r->in_place;
    for (int k = 0; k < OPERANDS; k++)
        memcpy(parts->memory[k], r->memory[k], (MOST + BEYOND) * sizeof(float));
    const tr_op_desc step = step_of(r, r->memory, own);
    run(r, step, own);
    in_parts(parts, wide);
    compare(r, parts);
}

/* Sets boxes of `rows` rows, and the count of elements from `element` on. */
static void cut(rounded *r, int64_t rows, int64_t n, int64_t k, int64_t element, int64_t count) {
    r->d.count = count;
    r->element = element;
    r->d.rounding = (tr_quantize_desc){
        .count = count,
        .use = USE,
        .boxes = 2,
        .box = {{.name = 7, .rows = rows, .cols = n, .ld = n + k, .first = 3, .step = 2 * n},
                {.name = 8, .begin = n, .rows = rows, .cols = k, .ld = n + k, .step = k + 1}}};
}

static const struct {
    int64_t rows, n, k, element, count;
} cuts[] = {{40, 17, 6, 0, 920},       {40, 17, 6, 20, 701},    {1, 1, 1, 0, 1},
            {3, 160, 333, 5, 1400},    {1, 4096, 8, 8, 4096},   {2, 1032, 9, 1, 1031},
            {4, 4000, 1100, 64, 9000}, {1, 19990, 10, 0, 19999}};

/* Checks a rule, or DESCEND, with every set of narrow operands. */
static void check_sets(rounded *r, rounded *parts, rounded *wide, size_t which) {
    static const tr_dtype states[] = {TR_F32, TR_BF16, TR_U8};
    for (int set = 1; set < 12; set++) {
        r->d.bf16_grad = set & 1;
        r->d.bf16_master = set & 2;
        r->d.state_dtype = states[set / 4];
        if (r->kind == TR_OP_DESCEND && set != 2) continue;
        for (size_t c = which; c < sizeof cuts / sizeof *cuts; c += 2) {
            static const tr_dtype values[] = {TR_BF16, TR_F16, TR_F32};
            const bool plain = (set + (int)c / 2) % 2;
            r->d.dtype = values[c % 3];
            r->d.clip_value = plain ? 0 : 0.5;
            r->d.l1 = plain ? 0 : 0.03;
            r->d.l2 = plain ? 0 : 0.2;
            r->state.skip = c == 1 && (set == 6 || set == 10);
            r->shift = (set + (int)c / 2) % 3 == 0 ? sizeof(float) : 0;
            r->in_place = r->kind == TR_OP_DIRECTION && !r->d.bf16_grad && c / 2 % 2;
            r->d.code[0] = r->d.rule == TR_UPDATE_MOMENTUM && (set + (int)c) % 2 ? TR_CODE8_EVEN
                                                                                 : TR_CODE8_SIGNED;
            r->d.code[1] = TR_CODE8_SQUARES;
            cut(r, cuts[c].rows, cuts[c].n, cuts[c].k, cuts[c].element, cuts[c].count);
            check(r, parts, wide);
        }
    }
}

static void rounds_as_quantize(void **state) {
    static const tr_op_kind kinds[] = {TR_OP_UPDATE, TR_OP_DIRECTION, TR_OP_DESCEND};
    const tr_device_options options = {.threads = 2};
    rounded r, parts, wide;
    must(tr_device_open(*state, &options, &device));
    open_memory(&r), open_memory(&parts), open_memory(&wide);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int rule = 0; rule < TR_UPDATE_RULES; rule++) {
            if (kinds[k] == TR_OP_DESCEND && rule > 0) continue;
            r.kind = kinds[k];
            r.state = (tr_step_state){.seed = seed,
                                      .step = 9,
                                      .lr = 0.01,
                                      .gradient_factor = 0.3,
                                      .bias_correction1 = 0.4,
                                      .bias_correction2 = 0.02,
                                      .square_weight = 0.2};
            r.d = (tr_update_desc){.beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .lr_scale = 0.5,
                                   .rule = (tr_update_rule)rule,
                                   .momentum = 0.9,
                                   .nesterov = k == 1};
            for (size_t which = 0; which < 2; which++) check_sets(&r, &parts, &wide, which);
        }
    close_memory(&r), close_memory(&parts), close_memory(&wide);
    tr_device_close(device);
}

int main(void) {
    seed = tr_test_seed(1);
    draw_normal();
#ifdef TRIREME_EMULATED
    static char *const names[] = {"cuda:0", "cuda:1", "cuda:2"};
#else
    static char *const names[] = {"ref", "cpu"};
#endif
    struct CMUnitTest tests[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = rounds_as_quantize, .initial_state = names[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
