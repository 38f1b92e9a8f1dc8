/* The records in the run directory (log.dir): config.yaml, metrics.jsonl, eval.jsonl, samples.jsonl
 * and TensorBoard events. Rank 0 writes them. */
#pragma once

#include "config/config.h"
#include "train/evaluate.h"
#include "train/noise.h"
#include "train/texts.h"

typedef struct tr_metrics tr_metrics;

/* The record of one step. */
typedef struct tr_metrics_record {
    int64_t step; /* from 1 */
    double loss, grad_norm, lr;
    double tokens_per_s;     /* of the batch's sequences, including tokens without a label */
    double val_loss;         /* NAN: no validation after this step, or no label of it counts */
    tr_noise_estimate noise; /* NAN: none in this step */
    double noise_scale;      /* of the running means, in tokens; NAN: not known */
    bool skipped;            /* it changed no parameter */
    double loss_scale;       /* of the gradients, in FP16; 0: not recorded */
} tr_metrics_record;

/* Renames the metrics of a run that saved nothing to metrics.old.jsonl, and its eval.jsonl and
 * samples.jsonl likewise. Sets *moved when there were metrics. */
tr_status tr_metrics_set_aside(const char *dir, bool *moved);

/* Opens the records in the run directory, which must exist, and writes the resolved config to
 * config.yaml. resume_step < 0: a new run with an empty metrics.jsonl. resume_step >= 0: removes
 * records of later steps, and an incomplete last line, from metrics.jsonl, eval.jsonl and
 * samples.jsonl. TensorBoard drops the same records. Fails with TR_ERR_IO. */
tr_status tr_metrics_open(const tr_config *config, int64_t resume_step, tr_metrics **out);

/* Removes the records of later steps; TensorBoard drops them, too, if there is room on the disk to
 * say so. Fails with TR_ERR_IO. */
tr_status tr_metrics_go_back(tr_metrics *metrics, int64_t step);

/* Appends one line {"step":..,"loss":..,"grad_norm":..,"lr":..,"tokens_per_s":..[,"val_loss":..]
 * [,"grad_square":..,"grad_variance":..][,"noise_scale":..][,"skipped":true][,"loss_scale":..]}
 * with 17 significant digits (null for a value that is not finite), and the same record to the
 * events. After a failure (TR_ERR_IO) the files hold only whole records, and the next one may
 * succeed. */
tr_status tr_metrics_write(tr_metrics *metrics, const tr_metrics_record *record);
/* Appends one line {"step":..,"eval":"PATH","acc":..,"acc_stderr":..,"acc_norm":..,
 * "acc_norm_stderr":..} to eval.jsonl, and the shares to the events. In PATH '?' stands for what is
 * not UTF-8. Fails like tr_metrics_write. */
tr_status tr_metrics_write_answers(tr_metrics *metrics, int64_t step, const char *path,
                                   const tr_choices_score *score);
/* Appends the line of tr_texts_record to samples.jsonl. Fails like tr_metrics_write. */
tr_status tr_metrics_write_sample(tr_metrics *metrics, int64_t step, const char *prompt,
                                  const tr_byte_list *text);
/* Puts the records on the disk, except the events. Fails with TR_ERR_IO. */
tr_status tr_metrics_sync(const tr_metrics *metrics);
void tr_metrics_close(tr_metrics *metrics);
