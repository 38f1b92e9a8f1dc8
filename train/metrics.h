/* The run directory (log.dir): config.yaml, metrics.jsonl, TensorBoard events. Rank 0 owns it. */
#pragma once

#include "config/config.h"

typedef struct tr_metrics tr_metrics;

/* What is known of a step. */
typedef struct tr_metrics_record {
    int64_t step; /* from 1 */
    double loss, grad_norm, lr, tokens_per_s;
    double val_loss; /* NAN: no validation after this step */
} tr_metrics_record;

/* Renames the metrics of a run that saved nothing to metrics.old.jsonl. *moved: there were some. */
tr_status tr_metrics_set_aside(const char *dir, bool *moved);

/* Opens the records in the run directory, which exists, and writes the resolved config to
 * config.yaml. resume_step < 0: a new run, whose metrics.jsonl begins empty. resume_step >= 0:
 * entries of later steps, and a last line cut short, are removed from metrics.jsonl. TR_ERR_IO when
 * it cannot be written. */
tr_status tr_metrics_open(const tr_config *config, int64_t resume_step, tr_metrics **out);

/* Appends one line {"step":..,"loss":..,"grad_norm":..,"lr":..,"tokens_per_s":..[,"val_loss":..]}
 * with 17 significant digits (what is not finite is null), and the same to the events. TR_ERR_IO
 * when it cannot be written: the files stay whole, and the next record may succeed. */
tr_status tr_metrics_write(tr_metrics *metrics, const tr_metrics_record *record);
void tr_metrics_close(tr_metrics *metrics);
