#include "support/ckpt_rig.h"

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state += 0x9E3779B97F4A7C15u;
    return tr_mix64(random_state);
}

int64_t random_below(int64_t n) {
    return (int64_t)(random_bits() % (uint64_t)n);
}

void add_tensor(model *m, const char *name, int rank, const int64_t *shape) {
    int i = m->count++;
    (void)snprintf(m->tensor[i].name, TR_NAME_SIZE, "%s", name);
    m->tensor[i].rank = rank;
    m->tensor[i].elements = 1;
    for (int d = 0; d < rank; d++) {
        m->tensor[i].shape[d] = shape[d];
        m->tensor[i].elements *= shape[d];
    }
    m->tensor[i].value = malloc((size_t)m->tensor[i].elements * sizeof(float));
    assert_non_null(m->tensor[i].value);
    for (int64_t e = 0; e < m->tensor[i].elements; e++) {
        uint32_t bits = (uint32_t)random_bits();
        memcpy(&m->tensor[i].value[e], &bits, sizeof bits);
    }
}

model random_model(void) {
    static const char *const group[] = {"weights", "adam_m", "adam_v"};
    model m = {0};
    add_tensor(&m, "weights/scalar", 0, NULL);
    add_tensor(&m, "adam_m/one", 1, (int64_t[]){1});
    int count = 3 + (int)random_below(6);
    for (int i = 0; i < count; i++) {
        char name[TR_NAME_SIZE];
        int rank = 1 + (int)random_below(4);
        int64_t shape[TR_PARAM_RANK];
        for (int d = 0; d < rank; d++) shape[d] = 1 + random_below(rank == 1 ? 300 : 20);
        (void)snprintf(name, sizeof name, "%s/h.%d.w", group[random_below(3)], i);
        add_tensor(&m, name, rank, shape);
    }
    return m;
}

model tiny_model(void) {
    model m = {0};
    add_tensor(&m, "weights/a", 2, (int64_t[]){4, 3});
    add_tensor(&m, "adam_m/a", 2, (int64_t[]){4, 3});
    add_tensor(&m, "weights/s", 0, NULL);
    return m;
}

void free_model(model *m) {
    for (int i = 0; i < m->count; i++) free(m->tensor[i].value);
    m->count = 0;
}

/* Cuts [0, n) into k non-empty intervals; cut[0] = 0, cut[k] = n. */
static void random_cuts(int64_t n, int k, int64_t *cut) {
    cut[0] = 0;
    for (int i = 1; i < k; i++) cut[i] = cut[i - 1] + 1 + random_below(n - cut[i - 1] - (k - i));
    cut[k] = n;
}

layout random_layout(const model *m, int ranks) {
    layout l = {.ranks = ranks};
    for (int t = 0; t < m->count; t++) {
        int rank = m->tensor[t].rank;
        int axis[2] = {rank ? (int)random_below(rank) : 0, 0}, pieces[2] = {1, 1};
        axis[1] = rank > 1 ? (axis[0] + 1) % rank : 0;
        int64_t cut[2][4] = {{0, 1}, {0, 1}};
        for (int a = 0; a < (rank > 1 ? 2 : rank); a++) {
            int64_t n = m->tensor[t].shape[axis[a]];
            pieces[a] = 1 + (int)random_below(n < 3 - a ? n : 3 - a);
            random_cuts(n, pieces[a], cut[a]);
        }
        int room[MAX_RANKS] = {MAX_BOXES, MAX_BOXES, MAX_BOXES, MAX_BOXES};
        int whole = pieces[0] * pieces[1] > ranks * MAX_BOXES;
        if (whole) pieces[0] = pieces[1] = 1;
        for (int i = 0; i < pieces[0] * pieces[1]; i++) {
            piece *p = &l.piece[t][l.pieces[t]++];
            for (int d = 0; d < rank; d++) {
                p->from[d] = 0;
                p->extent[d] = m->tensor[t].shape[d];
            }
            for (int a = 0; a < (rank > 1 ? 2 : rank) && !whole; a++) {
                int j = a ? i / pieces[0] : i % pieces[0];
                p->from[axis[a]] = cut[a][j];
                p->extent[axis[a]] = cut[a][j + 1] - cut[a][j];
            }
            do p->owner = (int)random_below(ranks);
            while (room[p->owner] == 0);
            room[p->owner]--;
            p->holders = 1u << p->owner;
        }
        /* replicas, where there is room after all owners */
        for (int i = 0; i < l.pieces[t]; i++)
            for (int r = 0; r < ranks; r++)
                if (r != l.piece[t][i].owner && room[r] > 0 && random_below(4) == 0) {
                    room[r]--;
                    l.piece[t][i].holders |= 1u << r;
                }
    }
    return l;
}

/* Copies the box between the global tensor and local memory, element by element. */
static void fill_box(const tr_ckpt_tensor *t, const tr_box *b, const float *global, float *local) {
    int64_t at[TR_PARAM_RANK] = {0};
    for (;;) {
        int64_t from = 0, to = b->local_offset;
        for (int d = 0; d < t->rank; d++) {
            from = from * t->shape[d] + b->offset[d] + at[d];
            to += at[d] * b->local_stride[d];
        }
        memcpy(&local[to], &global[from], sizeof *local);
        int d = t->rank - 1;
        while (d >= 0 && ++at[d] == b->extent[d]) at[d--] = 0;
        if (d < 0) return;
    }
}

static bool is_inside(const tr_ckpt_tensor *t, const tr_box *b) {
    for (int d = 0; d < t->rank; d++)
        if (b->offset[d] + b->extent[d] > t->shape[d]) return false;
    return true;
}

static const float canary = -12345.0f;

/* Makes this rank's list of tensors. A rank lists a tensor once, with boxes that it writes or with
 * replicas, so replicas of a tensor that it also writes are left out. */
static void make_memory(memory *mem, const model *m, const layout *l, int rank, bool filled) {
    memset(mem, 0, sizeof *mem);
    for (int t = 0; t < m->count; t++) {
        bool writes = false, holds = false;
        for (int i = 0; i < l->pieces[t]; i++) {
            writes = writes || l->piece[t][i].owner == rank;
            holds = holds || (l->piece[t][i].holders >> rank & 1);
        }
        if (!holds) continue;
        tr_ckpt_tensor *c = &mem->tensor[mem->count];
        memcpy(c->name, m->tensor[t].name, sizeof c->name);
        c->rank = m->tensor[t].rank;
        memcpy(c->shape, m->tensor[t].shape, sizeof c->shape);
        c->write = writes;
        c->box = mem->box[mem->count];
        int64_t end = random_below(3);
        for (int i = 0; i < l->pieces[t]; i++) {
            const piece *p = &l->piece[t][i];
            if (writes ? p->owner != rank : !(p->holders >> rank & 1)) continue;
            assert_true(c->boxes < MAX_BOXES);
            tr_box *b = &mem->box[mem->count][c->boxes++];
            int64_t stride = 1 + random_below(2);
            b->local_offset = end;
            for (int d = c->rank - 1; d >= 0; d--) {
                b->offset[d] = p->from[d];
                b->extent[d] = p->extent[d];
                b->local_stride[d] = stride;
                stride = stride * p->extent[d] + random_below(2);
            }
            end += stride + random_below(3);
        }
        mem->elements[mem->count] = (size_t)end + 1;
        float *local = c->local = malloc(((size_t)end + 1) * sizeof *local);
        assert_non_null(local);
        for (int64_t e = 0; e <= end; e++) local[e] = canary;
        for (int b = 0; b < c->boxes && filled; b++)
            if (is_inside(c, &c->box[b])) fill_box(c, &c->box[b], m->tensor[t].value, local);
        mem->count++;
    }
}

static void free_memory(memory *mem) {
    for (int i = 0; i < mem->count; i++) free(mem->tensor[i].local);
    mem->count = 0;
}

tr_ckpt_state state_of(int64_t step) {
    tr_ckpt_state s = {.step = step,
                       .next_sample = 17 * step,
                       .seed = UINT64_MAX - (uint64_t)step,
                       .optimizer_step = step - (step > 0),
                       .skipped = step > 0,
                       .tokens_seen = 100.1 * (double)step,
                       .data_bytes = 5000 + step,
                       .data_hash = UINT64_MAX - 1,
                       .data_format = UINT64_MAX - 2,
                       .validation = 0.1,
                       .split_bytes = 4000,
                       .epoch = step / 2,
                       .epoch_sample = 16 * step,
                       .epoch_bytes = 5000,
                       .guard = {.steps = step,
                                 .skips = 2,
                                 .loss_mean = 3.5,
                                 .loss_variance = 0.25,
                                 .norm_mean = 1.5,
                                 .norm_variance = 0.125},
                       .noise = {.steps = step, .square = -0.5, .variance = 12.5}};
    (void)snprintf(s.config, sizeof s.config, "train:\n  steps: %" PRId64 "\n", step);
    return s;
}

static void *rank_main(void *argument) {
    job_rank *me = argument;
    job *j = me->job;
    int r = me->rank;
    memory *mem = &j->memory[r];
    tr_ckpt_state state = state_of(j->step);
    if (j->save) {
        j->status[r] = tr_ckpt_save(j->world[r], j->root, &state, mem->tensor, mem->count);
    } else {
        j->status[r] = tr_ckpt_load(j->world[r], j->root, j->step, mem->tensor, mem->count,
                                    &j->state[r], j->corrupt[r]);
    }
    (void)snprintf(j->message[r], sizeof j->message[r], "%s", tr_error_message());
    tr_world_close(j->world[r]);
    return NULL;
}

/* Runs the job on all ranks; every rank must return the same status, and on failure the same
 * sentence. */
static tr_status run_job(job *j) {
    int n = j->layout->ranks;
    pthread_t thread[MAX_RANKS];
    job_rank rank[MAX_RANKS];
    assert_int_equal(tr_world_open_local(n, j->world), TR_OK);
    for (int r = 0; r < n; r++) {
        rank[r] = (job_rank){j, r};
        assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &rank[r]), 0);
    }
    for (int r = 0; r < n; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 1; r < n; r++) {
        assert_int_equal(j->status[r], j->status[0]);
        if (j->status[0] != TR_OK) assert_string_equal(j->message[r], j->message[0]);
    }
    return j->status[0];
}

char last_message[1024], last_corrupt[TR_CKPT_WHY];

tr_status save_model(const char *root, int64_t step, const model *m, const layout *l) {
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    *j = (job){.root = root, .step = step, .model = m, .layout = l, .save = true};
    for (int r = 0; r < l->ranks; r++) make_memory(&j->memory[r], m, l, r, true);
    tr_status status = run_job(j);
    memcpy(last_message, j->message[0], sizeof last_message);
    for (int r = 0; r < l->ranks; r++) free_memory(&j->memory[r]);
    free(j);
    return status;
}

void assert_good(tr_status status) {
    if (status != TR_OK) print_message("%s\n", last_message);
    assert_int_equal(status, TR_OK);
}

tr_status load_model(const char *root, int64_t step, int64_t expected_step, const model *m,
                     const layout *l) {
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    *j = (job){.root = root, .step = step, .model = m, .layout = l};
    for (int r = 0; r < l->ranks; r++) make_memory(&j->memory[r], m, l, r, false);
    tr_status status = run_job(j);
    memcpy(last_message, j->message[0], sizeof last_message);
    memcpy(last_corrupt, j->corrupt[0], sizeof last_corrupt);
    for (int r = 0; r < l->ranks; r++) {
        for (int i = 0; status == TR_OK && i < j->memory[r].count; i++) {
            tr_ckpt_tensor *t = &j->memory[r].tensor[i];
            size_t bytes = j->memory[r].elements[i] * sizeof(float);
            float *want = malloc(bytes);
            assert_non_null(want);
            for (size_t e = 0; e < j->memory[r].elements[i]; e++) want[e] = canary;
            int g = 0;
            while (strcmp(m->tensor[g].name, t->name) != 0) g++;
            for (int b = 0; b < t->boxes; b++) fill_box(t, &t->box[b], m->tensor[g].value, want);
            assert_memory_equal(want, t->local, bytes);
            free(want);
        }
        if (status == TR_OK) {
            tr_ckpt_state s = state_of(expected_step);
            assert_memory_equal(&s, &j->state[r], offsetof(tr_ckpt_state, config));
            assert_string_equal(s.config, j->state[r].config);
        }
        free_memory(&j->memory[r]);
    }
    free(j);
    return status;
}

char scratch[256];

char *path_of(const char *format, ...) {
    static char text[8][600];
    static int next;
    char *out = text[next++ % 8];
    int n = snprintf(out, 600, "%s/", scratch);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out + n, (size_t)(600 - n), format, args);
    va_end(args);
    return out;
}

static void remove_tree(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) {
        (void)unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char child[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        (void)snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        remove_tree(child);
    }
    (void)closedir(dir);
    (void)rmdir(path);
}

int count_entries(const char *path, const char *prefix) {
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0 && strcmp(e->d_name, ".") != 0 &&
             strcmp(e->d_name, "..") != 0;
    (void)closedir(dir);
    return n;
}

char *read_bytes(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    (void)fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, f), *size);
    data[*size] = '\0';
    (void)fclose(f);
    return data;
}

void write_bytes(const char *path, const char *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

int set_up(void **state) {
    (void)state;
    remove_tree(scratch);
    return mkdir(scratch, 0777);
}

int tear_down(void **state) {
    (void)state;
    remove_tree(scratch);
    return 0;
}

void print_seed(const char *test) {
    print_message("%s: ", test);
    random_state = tr_test_seed(1) * 2654435761u + 1;
}
