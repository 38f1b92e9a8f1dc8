#include "pipeline/program/lower_impl.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Equal pieces of a stage with one lifetime: an item of every block. */
typedef struct piece_class {
    tr_lifetime life;
    int at; /* among the classes of the stage with this lifetime */
    int count;
    size_t bytes;
} piece_class;

/* A piece's class among those of its stage, and its number there; class -1: it has no bytes. */
typedef struct piece_place {
    int class, number;
} piece_place;

typedef struct placer {
    const tr_schedule *s;
    const tr_stage_table *t;
    const tr_lower_edges *edges;
    tr_program *program;
    int *stage_row, *edge_row;      /* of the rank's stages and their edges; not set for others */
    int rows;                       /* the more of the two */
    piece_class *class;             /* of the rank's stages */
    piece_place *piece;             /* of the rank's stages */
    int *first_class, *first_piece; /* [stages + 1] */
    int *index;        /* [kinds][rows][micro_batches]: item, of a block its first one; or -1 */
    int *first_bucket; /* [stages + 1]: of the program's buckets, by stage */
    int *bucket;       /* [program->buckets]: item of each, or -1 */
    int *values;       /* [stages][most_buckets]: item of the last gather of each, or -1 */
    int most_buckets;
    int *gathered; /* [program->count]: item of a GATHER_START or GATHER_WAIT */
    bool *fetched; /* [stages * micro_batches]: the program fetches its blocks */
    size_t item_capacity, key_capacity, class_capacity, piece_capacity, place_capacity,
        copy_capacity;
} placer;

static int *index_of(const placer *p, tr_item_kind kind, int owner, int micro_batch) {
    const bool of_edge = kind >= TR_ITEM_INPUT && kind <= TR_ITEM_GRADIENT;
    const int own = of_edge ? p->edge_row[owner] : p->stage_row[owner];
    const size_t row = (size_t)kind * (size_t)p->rows + (size_t)own;
    return &p->index[row * (size_t)p->s->micro_batches + (size_t)micro_batch];
}

/* Numbers the rank's stages and their edges, and opens the index. */
static tr_status open_index(placer *p) {
    const tr_lower_edges *all = p->edges;
    int stages = 0, edges = 0;
    TR_TRY(tr_calloc((size_t)p->s->stages, sizeof *p->stage_row, &p->stage_row));
    TR_TRY(tr_calloc((size_t)p->t->edges, sizeof *p->edge_row, &p->edge_row));
    for (int s = 0; s < p->s->stages; s++) {
        if (p->s->rank_of[s] != p->program->rank) continue;
        p->stage_row[s] = stages++;
        for (int k = all->first[s]; k < all->first[s + 1]; k++) p->edge_row[all->edge[k]] = edges++;
    }
    p->rows = stages > edges ? stages : edges;
    const size_t indices = TR_ITEM_KINDS * (size_t)p->rows * (size_t)p->s->micro_batches;
    TR_TRY(tr_calloc(indices, sizeof *p->index, &p->index));
    memset(p->index, -1, indices * sizeof *p->index);
    return TR_OK;
}

/* Adds a piece to its class, the last one of the stage if it is new. first: the stage's classes. */
static tr_status classify(placer *p, int first, int *classes, tr_piece piece, piece_place *out) {
    const size_t bytes = tr_align_up(piece.bytes);
    int k = first, at = 0;
    for (; k < *classes && (p->class[k].life != piece.life || p->class[k].bytes != bytes); k++)
        at += p->class[k].life == piece.life;
    if (k == *classes) {
        TR_TRY(tr_grow(&p->class, &p->class_capacity, (size_t)k + 1, sizeof *p->class));
        p->class[(*classes)++] = (piece_class){.life = piece.life, .at = at, .bytes = bytes};
    }
    *out = (piece_place){.class = k - first, .number = p->class[k].count++};
    return TR_OK;
}

/* Sorts the pieces of the rank's stages into classes. */
static tr_status open_classes(placer *p) {
    int pieces = 0, classes = 0;
    for (int s = 0; s < p->s->stages; s++)
        if (p->s->rank_of[s] == p->program->rank) pieces += p->t->cost[s].pieces;
    TR_TRY(tr_calloc((size_t)pieces, sizeof *p->piece, &p->piece));
    TR_TRY(tr_calloc((size_t)p->s->stages + 1, sizeof *p->first_class, &p->first_class));
    TR_TRY(tr_calloc((size_t)p->s->stages + 1, sizeof *p->first_piece, &p->first_piece));
    pieces = 0;
    for (int s = 0; s < p->s->stages; s++) {
        const tr_stage_cost *cost = &p->t->cost[s];
        const int first = classes;
        for (int k = 0; k < cost->pieces && p->s->rank_of[s] == p->program->rank; k++, pieces++) {
            p->piece[pieces].class = -1;
            if (cost->piece[k].bytes)
                TR_TRY(classify(p, first, &classes, cost->piece[k], &p->piece[pieces]));
        }
        p->first_class[s + 1] = classes;
        p->first_piece[s + 1] = pieces;
    }
    return TR_OK;
}

static tr_status add_item(placer *p, tr_item_kind kind, int owner, int micro_batch, int count,
                          size_t bytes, int position) {
    tr_program *program = p->program;
    size_t need = (size_t)program->items + 1;
    TR_TRY(tr_grow(&program->item, &p->item_capacity, need, sizeof *program->item));
    TR_TRY(tr_grow(&program->key, &p->key_capacity, need, sizeof *program->key));
    program->item[program->items] = (tr_arena_item){
        .start = position, .end = position, .count = count, .bytes = tr_align_up(bytes)};
    program->key[program->items++] =
        (tr_item_key){.kind = kind, .owner = owner, .micro_batch = micro_batch};
    return TR_OK;
}

/* Extends the item's live range to `position`; creates the item at its first position. */
static tr_status touch(placer *p, tr_item_kind kind, int owner, int micro_batch, size_t bytes,
                       int position) {
    if (!bytes) return TR_OK;
    int *index = index_of(p, kind, owner, micro_batch);
    if (*index < 0) {
        TR_TRY(add_item(p, kind, owner, micro_batch, 1, bytes, position));
        *index = p->program->items - 1;
    }
    p->program->item[*index].end = position;
    return TR_OK;
}

/* Does the same for a block: one item for each class of its pieces, in order. */
static tr_status touch_block(placer *p, tr_item_kind kind, int stage, int micro_batch,
                             int position) {
    const tr_lifetime life = kind == TR_ITEM_FETCHED_FI   ? TR_LIFE_FI
                             : kind == TR_ITEM_FETCHED_FW ? TR_LIFE_FW
                                                          : (tr_lifetime)kind;
    int *index = index_of(p, kind, stage, micro_batch);
    bool made = *index >= 0;
    int first = made ? *index : p->program->items, item = first;
    for (int k = p->first_class[stage]; k < p->first_class[stage + 1]; k++) {
        const piece_class *class = &p->class[k];
        if (class->life != life) continue;
        if (!made)
            TR_TRY(add_item(p, kind, stage, micro_batch, class->count, class->bytes, position));
        p->program->item[item++].end = position;
    }
    if (item > first) *index = first;
    return TR_OK;
}

/* Returns the item of a block F..I or F..W in which the action finds or leaves it. */
static tr_item_kind block_of(const placer *p, tr_action a, tr_lifetime life) {
    const size_t at = (size_t)a.stage * (size_t)p->s->micro_batches + (size_t)a.micro_batch;
    const bool before =
        a.type == TR_ACTION_F || a.type == TR_ACTION_OFFLOAD || a.type == TR_ACTION_OFFLOAD_WAIT;
    if (before || !p->fetched[at]) return (tr_item_kind)life;
    return life == TR_LIFE_FI ? TR_ITEM_FETCHED_FI : TR_ITEM_FETCHED_FW;
}

static bool is_local(const placer *p, const tr_edge *edge) {
    return p->s->rank_of[edge->from] == p->s->rank_of[edge->to];
}

/* An action's use of an edge's tensor or gradient, and its item. */
typedef struct edge_use {
    tr_place_role role;
    tr_item_kind item;
} edge_use;

/* Lists an action's uses of edge e, at most two. On one rank an output is written where the next
 * stage reads it. */
static int edge_uses(const placer *p, const tr_instr *instr, int e, edge_use use[2]) {
    const tr_edge *edge = &p->t->edge[e];
    bool forward = instr->action.type == TR_ACTION_F, weight = instr->action.type == TR_ACTION_W;
    bool local = is_local(p, edge);
    bool writes = forward ? edge->f_writes_gradient && !p->s->forward_only : !weight;
    int n = 0;
    if (edge->to == instr->action.stage) {
        if (!weight || edge->life == TR_LIFE_FW) use[n++] = (edge_use){TR_PLACE_IN, TR_ITEM_INPUT};
        if (writes)
            use[n++] = (edge_use){TR_PLACE_DIN, local ? TR_ITEM_GRADIENT : TR_ITEM_SEND_GRADIENT};
    }
    if (edge->from == instr->action.stage && (!weight || edge->w_reads_gradient))
        use[n++] = forward ? (edge_use){TR_PLACE_OUT, local ? TR_ITEM_INPUT : TR_ITEM_SEND}
                           : (edge_use){TR_PLACE_DOUT, TR_ITEM_GRADIENT};
    return n;
}

/* Touches the blocks and edge tensors that an action uses. */
static tr_status touch_action(placer *p, const tr_instr *instr, int position) {
    int stage = instr->action.stage, k = instr->action.micro_batch;
    if (instr->action.type != TR_ACTION_W)
        TR_TRY(touch_block(p, block_of(p, instr->action, TR_LIFE_FI), stage, k, position));
    TR_TRY(touch_block(p, block_of(p, instr->action, TR_LIFE_FW), stage, k, position));
    if (instr->action.type == TR_ACTION_I || instr->action.type == TR_ACTION_W)
        TR_TRY(touch_block(p, TR_ITEM_IW, stage, k, position));
    if (instr->action.type == TR_ACTION_F)
        TR_TRY(touch(p, TR_ITEM_UNKEPT, stage, k, p->t->cost[stage].unkept, position));
    if (instr->action.type == TR_ACTION_B)
        TR_TRY(touch(p, TR_ITEM_IW, stage, k, p->t->cost[stage].backward_iw, position));
    for (int at = p->edges->first[stage]; at < p->edges->first[stage + 1]; at++) {
        edge_use use[2];
        const int e = p->edges->edge[at], uses = edge_uses(p, instr, e, use);
        for (int j = 0; j < uses; j++)
            TR_TRY(touch(p, use[j].item, e, k, p->t->edge[e].bytes, position));
    }
    return TR_OK;
}

static tr_item_kind item_of_transfer(const tr_instr *instr) {
    if (instr->action.type == TR_ACTION_RECV)
        return instr->action.gradient ? TR_ITEM_GRADIENT : TR_ITEM_INPUT;
    return instr->action.gradient ? TR_ITEM_SEND_GRADIENT : TR_ITEM_SEND;
}

static tr_status touch_transfer(placer *p, const tr_instr *instr, int position) {
    return touch(p, item_of_transfer(instr), instr->edge, instr->action.micro_batch,
                 p->t->edge[instr->edge].bytes, position);
}

/* Lists the buckets in the arena of the rank's stages. */
static tr_status list_buckets(placer *p) {
    tr_program *program = p->program;
    size_t most = 0;
    TR_TRY(tr_calloc((size_t)p->s->stages + 1, sizeof *p->first_bucket, &p->first_bucket));
    for (int s = 0; s < p->s->stages; s++) most += (size_t)p->t->cost[s].buckets;
    TR_TRY(tr_calloc(most, sizeof *program->bucket, &program->bucket));
    TR_TRY(tr_calloc(most, sizeof *p->bucket, &p->bucket));
    for (int s = 0; s < p->s->stages; s++) {
        const tr_stage_cost *cost = &p->t->cost[s];
        const bool here = p->s->rank_of[s] == program->rank && !program->forward_only;
        for (int k = 0; k < cost->buckets && here; k++) {
            if (!cost->bucket[k].arena) continue;
            const size_t bytes = tr_align_up(cost->bucket[k].arena);
            p->bucket[program->buckets] = -1;
            program->bucket[program->buckets++] =
                (tr_program_bucket){.stage = s, .bucket = k, .bytes = bytes};
            program->bucket_bytes += bytes;
        }
        p->first_bucket[s + 1] = program->buckets;
    }
    return TR_OK;
}

/* Touches the buckets of which the instruction writes the gradients, or ends the sum. */
static tr_status touch_buckets(placer *p, const tr_instr *instr, int position) {
    const tr_action a = instr->action;
    if (a.type != TR_ACTION_F && a.type != TR_ACTION_W && a.type != TR_ACTION_B &&
        a.type != TR_ACTION_REDUCE_WAIT)
        return TR_OK;
    for (int w = p->first_bucket[a.stage]; w < p->first_bucket[a.stage + 1]; w++) {
        const tr_program_bucket *place = &p->program->bucket[w];
        if (a.type == TR_ACTION_F && !p->t->cost[a.stage].bucket[place->bucket].in_forward)
            continue;
        if (a.type == TR_ACTION_REDUCE_WAIT && a.micro_batch != place->bucket) continue;
        if (p->bucket[w] < 0) {
            TR_TRY(add_item(p, TR_ITEM_BUCKET, a.stage, place->bucket, 1, place->bytes, position));
            p->bucket[w] = p->program->items - 1;
        }
        p->program->item[p->bucket[w]].end = position;
    }
    return TR_OK;
}

/* Touches the blocks that the instruction copies, or of which it ends the copies. */
static tr_status touch_copies(placer *p, tr_action a, int position) {
    for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_FW; life++)
        TR_TRY(touch_block(p, block_of(p, a, life), a.stage, a.micro_batch, position));
    return TR_OK;
}

/* Opens the lists of gathered values, and measures all values of the rank's stages. */
static tr_status list_values(placer *p) {
    tr_program *program = p->program;
    for (int s = 0; s < p->s->stages; s++)
        if (p->t->cost[s].buckets > p->most_buckets) p->most_buckets = p->t->cost[s].buckets;
    const size_t keys = (size_t)p->s->stages * (size_t)p->most_buckets;
    TR_TRY(tr_calloc(keys, sizeof *p->values, &p->values));
    TR_TRY(tr_calloc((size_t)program->count, sizeof *p->gathered, &p->gathered));
    for (size_t k = 0; k < keys; k++) p->values[k] = -1;
    for (int s = 0; s < p->s->stages; s++)
        for (int k = 0; k < p->t->cost[s].buckets && p->s->rank_of[s] == program->rank; k++)
            program->value_bytes += tr_align_up(p->t->cost[s].bucket[k].values);
    return TR_OK;
}

/* Returns true when the action gathers values to the arena, or waits for that. */
static bool gathers_divided(const placer *p, tr_action a) {
    return tr_action_gathers(a) && p->t->cost[a.stage].bucket[a.micro_batch].values > 0;
}

/* Begins the values that the instruction gathers, or touches those that it uses. */
static tr_status touch_values(placer *p, const tr_instr *instr, int position) {
    const tr_action a = instr->action;
    if (!gathers_divided(p, a) && !tr_action_computes(a)) return TR_OK;
    int *last = &p->values[a.stage * p->most_buckets];
    if (a.type == TR_ACTION_GATHER_START) {
        TR_TRY(add_item(p, TR_ITEM_VALUES, a.stage, a.micro_batch, 1, instr->bytes, position));
        last[a.micro_batch] = p->program->items - 1;
    }
    if (gathers_divided(p, a)) p->gathered[position] = last[a.micro_batch];
    for (int k = 0; k < p->t->cost[a.stage].buckets; k++)
        if (last[k] >= 0 && (k == a.micro_batch || tr_action_computes(a)))
            p->program->item[last[k]].end = position;
    return TR_OK;
}

static tr_status find_lifetimes(placer *p) {
    const size_t micro_batches = (size_t)p->s->micro_batches;
    TR_TRY(tr_calloc((size_t)p->s->stages * micro_batches, sizeof *p->fetched, &p->fetched));
    for (int k = 0; k < p->program->count; k++) {
        const tr_action a = p->program->instr[k].action;
        if (a.type == TR_ACTION_FETCH)
            p->fetched[(size_t)a.stage * micro_batches + (size_t)a.micro_batch] = true;
    }
    for (int k = 0; k < p->program->count; k++) {
        const tr_instr *instr = &p->program->instr[k];
        if (instr->memory >= 0) TR_TRY(touch_action(p, instr, k));
        else if (tr_action_offloads(instr->action)) TR_TRY(touch_copies(p, instr->action, k));
        else if (tr_action_transfers(instr->action)) TR_TRY(touch_transfer(p, instr, k));
        TR_TRY(touch_buckets(p, instr, k));
        TR_TRY(touch_values(p, instr, k));
    }
    return TR_OK;
}

/* Sets *peak to the most bytes of a kind of items that are alive at one time. */
static tr_status find_peak(const tr_program *program, tr_item_kind kind, size_t *peak) {
    size_t *begins, *ends, alive = 0;
    TR_TRY(tr_calloc(2 * ((size_t)program->count + 1), sizeof *begins, &begins));
    ends = begins + program->count + 1;
    for (int i = 0; i < program->items; i++) {
        if (program->key[i].kind != kind) continue;
        const tr_arena_item *item = &program->item[i];
        begins[item->start] += (size_t)item->count * item->bytes;
        ends[item->end + 1] += (size_t)item->count * item->bytes;
    }
    for (int k = 0; k < program->count; k++) {
        alive += begins[k] - ends[k];
        if (alive > *peak) *peak = alive;
    }
    free(begins);
    return TR_OK;
}

/* --- offsets ---------------------------------------------------------------------------------- */

/* Returns the offset of an item's buffer. */
static size_t buffer_of(const placer *p, int item, int number) {
    return p->program->offset[p->program->item[item].first + number];
}

static size_t offset_of(const placer *p, tr_item_kind kind, int owner, int micro_batch) {
    int index = *index_of(p, kind, owner, micro_batch);
    return index < 0 ? TR_NO_PLACE : buffer_of(p, index, 0);
}

/* Returns the offset of the k-th piece of a stage in the block of its lifetime that begins with
 * `item`. */
static size_t piece_of(const placer *p, int stage, int k, int item) {
    const piece_place *place = &p->piece[p->first_piece[stage] + k];
    const piece_class *class = &p->class[p->first_class[stage] + place->class];
    return buffer_of(p, item + class->at, place->number);
}

static tr_status add_place(placer *p, int edge, tr_place_role role, size_t offset) {
    tr_program *program = p->program;
    TR_TRY(tr_grow(&program->place, &p->place_capacity, (size_t)program->places + 1,
                   sizeof *program->place));
    program->place[program->places++] = (tr_place){.edge = edge, .role = role, .offset = offset};
    return TR_OK;
}

/* Adds the action's pieces that are alive; the bytes of the others may be in use by other items. */
static tr_status add_pieces(placer *p, const tr_instr *instr) {
    tr_program *program = p->program;
    const tr_stage_cost *cost = &p->t->cost[instr->action.stage];
    int item[TR_LIFE_SCRATCH]; /* the first item of each block */
    for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_IW; life++)
        item[life] =
            *index_of(p, life == TR_LIFE_IW ? TR_ITEM_IW : block_of(p, instr->action, life),
                      instr->action.stage, instr->action.micro_batch);
    if (instr->action.type == TR_ACTION_W) item[TR_LIFE_FI] = -1;
    if (instr->action.type == TR_ACTION_F || instr->action.type == TR_ACTION_B)
        item[TR_LIFE_IW] = -1;
    for (int k = 0; k < cost->pieces; k++) {
        tr_piece piece = cost->piece[k];
        bool placed = item[piece.life] >= 0 && piece.bytes;
        TR_TRY(tr_grow(&program->piece, &p->piece_capacity, (size_t)program->pieces + 1,
                       sizeof *program->piece));
        program->piece[program->pieces++] =
            placed ? piece_of(p, instr->action.stage, k, item[piece.life]) : TR_NO_PLACE;
    }
    return TR_OK;
}

static tr_status fill_action(placer *p, const tr_instr *instr) {
    tr_action_memory *memory = &p->program->memory[instr->memory];
    const int stage = instr->action.stage, micro_batch = instr->action.micro_batch;
    memory->first_piece = p->program->pieces;
    memory->pieces = p->t->cost[stage].pieces;
    memory->backward = memory->unkept = TR_NO_PLACE;
    if (instr->action.type == TR_ACTION_B)
        memory->backward = offset_of(p, TR_ITEM_IW, stage, micro_batch);
    if (instr->action.type == TR_ACTION_F)
        memory->unkept = offset_of(p, TR_ITEM_UNKEPT, stage, micro_batch);
    TR_TRY(add_pieces(p, instr));
    memory->first_place = p->program->places;
    for (int at = p->edges->first[stage]; at < p->edges->first[stage + 1]; at++) {
        edge_use use[2];
        const int e = p->edges->edge[at], uses = edge_uses(p, instr, e, use);
        for (int j = 0; j < uses; j++)
            TR_TRY(add_place(p, e, use[j].role, offset_of(p, use[j].item, e, micro_batch)));
    }
    memory->places = p->program->places - memory->first_place;
    return TR_OK;
}

/* Lists the copies of an OFFLOAD or a FETCH, to or from the host's memory at `host`. */
static tr_status add_copies(placer *p, tr_instr *instr, size_t host) {
    tr_program *program = p->program;
    const tr_action a = instr->action;
    const tr_stage_cost *cost = &p->t->cost[a.stage];
    instr->first_copy = program->copies;
    for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_FW; life++) {
        const int item = *index_of(p, block_of(p, a, life), a.stage, a.micro_batch);
        for (int k = 0; k < cost->pieces; k++) {
            if (cost->piece[k].life != life || !cost->piece[k].bytes) continue;
            TR_TRY(tr_grow(&program->copy, &p->copy_capacity, (size_t)program->copies + 1,
                           sizeof *program->copy));
            program->copy[program->copies++] =
                (tr_program_copy){.offset = piece_of(p, a.stage, k, item),
                                  .host = host,
                                  .bytes = cost->piece[k].bytes};
            host += tr_align_up(cost->piece[k].bytes);
            instr->bytes += cost->piece[k].bytes;
        }
    }
    instr->copies = program->copies - instr->first_copy;
    return TR_OK;
}

/* Returns the bytes of the host's memory for a micro-batch of a stage. */
static size_t host_bytes(const tr_stage_cost *cost) {
    size_t bytes = 0;
    for (int k = 0; k < cost->pieces; k++)
        if (cost->piece[k].life <= TR_LIFE_FW) bytes += tr_align_up(cost->piece[k].bytes);
    return bytes;
}

/* Packs what OFFLOADs copy in the host's memory, each until its FETCH_WAIT, and lists all
 * copies. */
static tr_status fill_copies(placer *p) {
    tr_program *program = p->program;
    tr_status status = TR_OK;
    const size_t micro_batches = (size_t)p->s->micro_batches;
    tr_arena_item *item = NULL;
    int *of = NULL, items = 0; /* [stages * micro_batches]: its item */
    size_t *offset = NULL, peak;
    TR_TRY_OUT(tr_calloc((size_t)p->s->stages * micro_batches, sizeof *of, &of));
    TR_TRY_OUT(tr_calloc((size_t)program->count, sizeof *item, &item));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (!tr_action_offloads(a)) continue;
        int *own = &of[(size_t)a.stage * micro_batches + (size_t)a.micro_batch];
        if (a.type == TR_ACTION_OFFLOAD) {
            *own = items;
            item[items++] =
                (tr_arena_item){.start = k, .count = 1, .bytes = host_bytes(&p->t->cost[a.stage])};
        }
        item[*own].end = k;
    }
    TR_TRY_OUT(tr_arena_pack(item, items, &offset, &program->host_bytes, &peak));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (a.type != TR_ACTION_OFFLOAD && a.type != TR_ACTION_FETCH) continue;
        const int own = of[(size_t)a.stage * micro_batches + (size_t)a.micro_batch];
        TR_TRY_OUT(add_copies(p, &program->instr[k], offset[own]));
    }
out:
    free(offset);
    free(item);
    free(of);
    return status;
}

static tr_status fill_offsets(placer *p) {
    tr_program *program = p->program;
    for (int w = 0; w < program->buckets; w++)
        program->bucket[w].offset = buffer_of(p, p->bucket[w], 0);
    TR_TRY(find_peak(program, TR_ITEM_BUCKET, &program->bucket_peak));
    TR_TRY(find_peak(program, TR_ITEM_VALUES, &program->value_peak));
    TR_TRY(tr_calloc((size_t)program->memories, sizeof *program->memory, &program->memory));
    for (int k = 0; k < program->count; k++) {
        tr_instr *instr = &program->instr[k];
        if (instr->memory >= 0) TR_TRY(fill_action(p, instr));
        else if (tr_action_transfers(instr->action))
            instr->offset =
                offset_of(p, item_of_transfer(instr), instr->edge, instr->action.micro_batch);
        else if (gathers_divided(p, instr->action)) instr->offset = buffer_of(p, p->gathered[k], 0);
    }
    return TR_OK;
}

/* Finds the items, and packs them. offset: as in tr_arena_pack. */
static tr_status pack(placer *p, size_t **offset) {
    tr_program *program = p->program;
    size_t peak = 0;
    TR_TRY(open_index(p));
    TR_TRY(open_classes(p));
    TR_TRY(list_buckets(p));
    TR_TRY(list_values(p));
    TR_TRY(find_lifetimes(p));
    TR_TRY(tr_arena_pack(program->item, program->items, offset, &program->scratch_offset, &peak));
    for (int k = 0; k < p->s->stages; k++) {
        size_t scratch = tr_align_up(p->t->cost[k].bytes[TR_LIFE_SCRATCH]);
        if (p->s->rank_of[k] == program->rank && scratch > program->scratch_bytes)
            program->scratch_bytes = scratch;
    }
    program->arena_bytes = program->scratch_offset + program->scratch_bytes;
    program->live_peak_bytes = peak + program->scratch_bytes;
    return TR_OK;
}

static void close_placer(const placer *p) {
    free(p->fetched);
    free(p->first_bucket);
    free(p->bucket);
    free(p->values);
    free(p->gathered);
    free(p->index);
    free(p->first_piece);
    free(p->first_class);
    free(p->piece);
    free(p->class);
    free(p->edge_row);
    free(p->stage_row);
}

tr_status tr_lower_place(const tr_schedule *s, const tr_stage_table *t, const tr_lower_edges *edges,
                         tr_program *program) {
    placer p = {.s = s, .t = t, .edges = edges, .program = program};
    tr_status status = pack(&p, &program->offset);
    if (status == TR_OK) status = fill_offsets(&p);
    if (status == TR_OK) status = fill_copies(&p);
    close_placer(&p);
    return status;
}

tr_status tr_lower_pack(const tr_schedule *s, const tr_stage_table *t, const tr_lower_edges *edges,
                        tr_program *program) {
    placer p = {.s = s, .t = t, .edges = edges, .program = program};
    const tr_status status = pack(&p, NULL);
    close_placer(&p);
    return status;
}
