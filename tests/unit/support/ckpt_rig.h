/* The rig of test_ckpt.c and test_ckpt_damage.c: random models and layouts, ranks that save and
 * load as threads of a local world, and their directories. */
#pragma once

#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "support/seed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_TENSORS = 12, MAX_RANKS = 4, MAX_BOXES = 3, MAX_PIECES = 6 };

int64_t random_below(int64_t n);

/* --- a model: global tensors with random bits ------------------------------------------------- */

typedef struct model {
    int count;
    struct {
        char name[TR_NAME_SIZE];
        int rank;
        int64_t shape[TR_PARAM_RANK], elements;
        float *value; /* row-major; any bits, NaN too */
    } tensor[MAX_TENSORS];
} model;

void add_tensor(model *m, const char *name, int rank, const int64_t *shape);

model random_model(void);

/* Small enough to flip each of its bytes. */
model tiny_model(void);

void free_model(model *m);

/* --- a layout: which rank holds which boxes --------------------------------------------------- */

typedef struct piece {
    int owner;        /* the rank that writes it */
    unsigned holders; /* bit set of ranks that hold it; the owner among them */
    int64_t from[TR_PARAM_RANK], extent[TR_PARAM_RANK];
} piece;

typedef struct layout {
    int ranks;
    int pieces[MAX_TENSORS];
    piece piece[MAX_TENSORS][MAX_PIECES];
} layout;

layout random_layout(const model *m, int ranks);

/* --- a rank's memory -------------------------------------------------------------------------- */

typedef struct memory {
    int count;
    tr_ckpt_tensor tensor[2 * MAX_TENSORS];
    tr_box box[2 * MAX_TENSORS][MAX_BOXES];
    size_t elements[2 * MAX_TENSORS]; /* allocated, gaps between boxes included */
} memory;

/* --- ranks ------------------------------------------------------------------------------------ */

typedef struct job {
    const char *root;
    int64_t step;
    const model *model;
    const layout *layout;
    bool save, wrong;
    tr_world *world[MAX_RANKS];
    memory memory[MAX_RANKS];
    tr_status status[MAX_RANKS];
    char message[MAX_RANKS][1024], corrupt[MAX_RANKS][TR_CKPT_WHY];
    tr_ckpt_state state[MAX_RANKS];
} job;

typedef struct job_rank {
    job *job;
    int rank;
} job_rank;

tr_ckpt_state state_of(int64_t step);

extern char last_message[1024], last_corrupt[TR_CKPT_WHY];

tr_status save_model(const char *root, int64_t step, const model *m, const layout *l);

/* Fails with the error's sentence unless the status is success. */
void assert_good(tr_status status);

/* Loads under layout l. When that succeeds, checks every bit of every box, that memory between the
 * boxes is unchanged, and the state. */
tr_status load_model(const char *root, int64_t step, int64_t expected_step, const model *m,
                     const layout *l);

/* --- directories ------------------------------------------------------------------------------ */

extern char scratch[256];

char *path_of(const char *format, ...);

/* Returns the number of entries with that prefix. */
int count_entries(const char *path, const char *prefix);

char *read_bytes(const char *path, size_t *size);

void write_bytes(const char *path, const char *data, size_t size);

int set_up(void **state);

int tear_down(void **state);

void print_seed(const char *test);
