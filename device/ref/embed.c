/* EMBED, POSITION and their weight gradients. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

tr_status tr_ref_embed(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const int32_t *tokens = args->t[TR_EMBED_TOKENS].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t v = (int64_t)tokens[r] - d->vocab_begin;
        bool here = v >= 0 && v < d->vocab;
        for (int64_t c = 0; c < d->width; c++)
            tr_ref_store(
                d->dtype, args->t[TR_EMBED_Y].data, r * d->width + c,
                here ? tr_ref_load(d->dtype, args->t[TR_EMBED_TABLE].data, v * d->width + c) : 0);
    }
    return TR_OK;
}

tr_status tr_ref_embed_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const int32_t *tokens = args->t[TR_EMBED_WGRAD_TOKENS].data;
    for (int64_t v = 0; v < d->vocab; v++)
        for (int64_t c = 0; c < d->width; c++) {
            double sum = 0;
            for (int64_t r = 0; r < d->rows; r++)
                if (tokens[r] - d->vocab_begin == v)
                    sum += tr_ref_load(d->dtype, args->t[TR_EMBED_WGRAD_DY].data, r * d->width + c);
            tr_ref_accumulate(args, TR_EMBED_WGRAD_DTABLE, v * d->width + c, sum);
        }
    return TR_OK;
}

tr_status tr_ref_position(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const int32_t *starts = args->t[TR_POSITION_STARTS].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t position = tr_token_position(d->decode, d->seq, args->state, d->first + r);
        if (position < 0 || position >= d->seq)
            return TR_FAIL(TR_ERR_INTERNAL, "position %lld is outside a table of %lld rows",
                           (long long)position, (long long)d->seq);
        if (d->documents) position -= starts[r];
        for (int64_t c = 0; c < d->width; c++)
            tr_ref_store(d->dtype, args->t[TR_POSITION_Y].data, r * d->width + c,
                         tr_ref_load(d->dtype, args->t[TR_POSITION_X].data, r * d->width + c) +
                             tr_ref_load(d->dtype, args->t[TR_POSITION_TABLE].data,
                                         position * d->width + c));
    }
    return TR_OK;
}

tr_status tr_ref_position_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const int32_t *starts = args->t[TR_POSITION_WGRAD_STARTS].data;
    for (int64_t p = 0; p < d->seq; p++)
        for (int64_t c = 0; c < d->width; c++) {
            double sum = 0;
            for (int64_t r = 0; r < d->rows; r++)
                if (r % d->seq - (d->documents ? starts[r] : 0) == p)
                    sum +=
                        tr_ref_load(d->dtype, args->t[TR_POSITION_WGRAD_DY].data, r * d->width + c);
            tr_ref_accumulate(args, TR_POSITION_WGRAD_DTABLE, p * d->width + c, sum);
        }
    return TR_OK;
}
