#include "train/metrics.h"

#include "base/input.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/utf8.h"
#include "train/append.h"
#include "train/tensorboard.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = TR_CONFIG_PATH + 64 };

struct tr_metrics {
    tr_append lines, events;
    /* eval.jsonl, samples.jsonl; closed without their key and records: */
    tr_append answers, samples;
};

/* Writes a temporary file and renames it, so that a full disk does not destroy the config. */
static tr_status write_config(const tr_config *config) {
    char path[PATH_SIZE], temporary[PATH_SIZE + 8];
    (void)snprintf(path, sizeof path, "%s/config.yaml", config->log.dir);
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *f;
    TR_TRY(tr_output_open_for(path, temporary, &f));
    return tr_output_replace(temporary, path, f, tr_config_print(config, f));
}

/* Returns the step of a line, or -1 when it is not a record. */
static int64_t line_step(const char *line) {
    cJSON *record = cJSON_Parse(line);
    int64_t step;
    const bool has_step = tr_json_integer(tr_json_get(record, "step"), &step);
    cJSON_Delete(record);
    return has_step ? step : -1;
}

/* Finds how many bytes to keep: up to the first line that is incomplete, not a record, or of a
 * later step. Fails with TR_ERR_IO when the file cannot be read to there, because what follows
 * would be cut. */
static tr_status kept_length(const char *path, int64_t last_step, int64_t *bytes) {
    *bytes = 0;
    FILE *f;
    TR_TRY(tr_input_stream(path, &f));
    if (!f) return TR_OK;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    for (; (n = getline(&line, &size, f)) > 0 && line[n - 1] == '\n'; *bytes += n) {
        int64_t step = line_step(line);
        if (step < 0 || step > last_step) break;
    }
    const int error = n < 0 && !feof(f) ? errno : 0;
    free(line);
    (void)fclose(f);
    return error ? TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", path, strerror(error)) : TR_OK;
}

/* Renames NAME.jsonl to NAME.old.jsonl if there is anything in it. */
static tr_status set_aside(const char *dir, const char *name, bool *moved) {
    char lines[PATH_SIZE], old[PATH_SIZE];
    struct stat info;
    (void)snprintf(lines, sizeof lines, "%s/%s.jsonl", dir, name);
    (void)snprintf(old, sizeof old, "%s/%s.old.jsonl", dir, name);
    *moved = stat(lines, &info) == 0 && info.st_size > 0;
    if (*moved && rename(lines, old))
        return TR_FAIL(TR_ERR_IO, "'%s' cannot be renamed: %s", lines, strerror(errno));
    return TR_OK;
}

tr_status tr_metrics_set_aside(const char *dir, bool *moved) {
    bool other;
    TR_TRY(set_aside(dir, "eval", &other));
    TR_TRY(set_aside(dir, "samples", &other));
    return set_aside(dir, "metrics", moved);
}

/* Opens a file that only a key makes; also without the key (`wanted`) where there is one, to cut
 * it. */
static tr_status open_wanted(const char *dir, const char *name, bool wanted, int64_t resume_step,
                             tr_append *out) {
    char path[PATH_SIZE];
    int64_t keep = 0;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!wanted && access(path, F_OK) != 0) return TR_OK;
    if (resume_step >= 0) TR_TRY(kept_length(path, resume_step, &keep));
    return tr_append_open(path, keep, out);
}

tr_status tr_metrics_open(const tr_config *config, int64_t resume_step, tr_metrics **out) {
    const char *dir = config->log.dir;
    char path[PATH_SIZE];
    int64_t keep = 0;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (resume_step >= 0) TR_TRY(kept_length(path, resume_step, &keep));
    TR_TRY(write_config(config));

    tr_metrics *m;
    TR_TRY(tr_calloc(1, sizeof *m, &m));
    m->lines.fd = m->events.fd = m->answers.fd = m->samples.fd = -1;
    tr_status status = tr_append_open(path, keep, &m->lines);
    if (status == TR_OK)
        status = open_wanted(dir, "eval.jsonl", config->train.eval[0], resume_step, &m->answers);
    if (status == TR_OK)
        status = open_wanted(dir, "samples.jsonl", config->train.sample_every > 0, resume_step,
                             &m->samples);
    if (status == TR_OK)
        status = tr_tb_open(dir, resume_step < 0 ? 1 : resume_step + 1, &m->events);
    if (status != TR_OK) {
        tr_metrics_close(m);
        TR_TRY(status);
    }
    *out = m;
    return TR_OK;
}

tr_status tr_metrics_go_back(tr_metrics *m, int64_t step) {
    tr_append *const file[] = {&m->lines, &m->answers, &m->samples};
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        int64_t keep;
        if (file[i]->fd < 0) continue;
        TR_TRY(kept_length(file[i]->path, step, &keep));
        TR_TRY(tr_append_cut(file[i], keep));
    }
    if (tr_tb_start(&m->events, step + 1) != TR_OK) tr_error_clear(); /* a full disk */
    return TR_OK;
}

tr_status tr_metrics_write(tr_metrics *m, const tr_metrics_record *record) {
    const struct {
        const char *name;
        double value;
        bool known;
    } entry[] = {
        {"loss", record->loss, true},
        {"grad_norm", record->grad_norm, true},
        {"lr", record->lr, true},
        {"tokens_per_s", record->tokens_per_s, true},
        {"val_loss", record->val_loss, !isnan(record->val_loss)},
        {"grad_square", record->noise.square, !isnan(record->noise.square)},
        {"grad_variance", record->noise.variance, !isnan(record->noise.variance)},
        {"noise_scale", record->noise_scale, !isnan(record->noise_scale)},
    };
    char line[1024];
    int used = snprintf(line, sizeof line, "{\"step\":%" PRId64, record->step);
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++) {
        if (!entry[i].known) continue;
        char number[40] = "null";
        if (isfinite(entry[i].value))
            (void)snprintf(number, sizeof number, "%.17g", entry[i].value);
        used +=
            snprintf(line + used, sizeof line - (size_t)used, ",\"%s\":%s", entry[i].name, number);
    }
    if (record->skipped)
        used += snprintf(line + used, sizeof line - (size_t)used, ",\"skipped\":true");
    if (record->loss_scale > 0)
        used += snprintf(line + used, sizeof line - (size_t)used, ",\"loss_scale\":%.17g",
                         record->loss_scale);
    used += snprintf(line + used, sizeof line - (size_t)used, "}\n");
    TR_TRY(tr_append_write(&m->lines, line, (size_t)used));
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
        if (entry[i].known)
            TR_TRY(tr_tb_scalar(&m->events, record->step, entry[i].name, entry[i].value));
    if (record->loss_scale > 0)
        TR_TRY(tr_tb_scalar(&m->events, record->step, "loss_scale", record->loss_scale));
    return TR_OK;
}

/* Writes NAME/PATH, with the end of a path that is too long: files may differ only by folder. It is
 * UTF-8, without which TensorBoard does not read the event file. */
static void write_tag(char tag[TR_TB_TAG], const char *name, const char *path) {
    const size_t room = TR_TB_TAG - strlen(name) - 2, length = strlen(path);
    if (length > room) path += length - room;
    while (length > room && ((unsigned char)*path & 0xC0) == 0x80) path++;
    (void)snprintf(tag, TR_TB_TAG, "%s/%s", name, path + strspn(path, "/"));
    tr_utf8_repair(tag);
}

tr_status tr_metrics_write_answers(tr_metrics *m, int64_t step, const char *path,
                                   const tr_choices_score *score) {
    char tag[TR_TB_TAG];
    cJSON *record = cJSON_CreateObject();
    (void)cJSON_AddNumberToObject(record, "step", (double)step);
    const cJSON *shown = cJSON_AddStringToObject(record, "eval", path);
    if (shown) tr_utf8_repair(shown->valuestring);
    (void)cJSON_AddNumberToObject(record, "acc", score->accuracy.share);
    (void)cJSON_AddNumberToObject(record, "acc_stderr", score->accuracy.error);
    (void)cJSON_AddNumberToObject(record, "acc_norm", score->normalised.share);
    (void)cJSON_AddNumberToObject(record, "acc_norm_stderr", score->normalised.error);
    char *text = cJSON_PrintUnformatted(record), *line = NULL;
    cJSON_Delete(record);
    tr_status status =
        text ? tr_calloc(strlen(text) + 2, 1, &line) : TR_FAIL(TR_ERR_FIT, "out of host memory");
    if (status == TR_OK) {
        (void)strcat(strcpy(line, text), "\n");
        status = tr_append_write(&m->answers, line, strlen(line));
    }
    free(line);
    cJSON_free(text);
    TR_TRY(status);
    write_tag(tag, "acc", path);
    TR_TRY(tr_tb_scalar(&m->events, step, tag, score->accuracy.share));
    write_tag(tag, "acc_norm", path);
    return tr_tb_scalar(&m->events, step, tag, score->normalised.share);
}

tr_status tr_metrics_write_sample(tr_metrics *m, int64_t step, const char *prompt,
                                  const tr_byte_list *text) {
    char *line = NULL;
    size_t length;
    FILE *out = open_memstream(&line, &length);
    if (!out) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    tr_texts_record(out, step, prompt, text->byte, text->count);
    tr_status status = fclose(out) == 0 ? tr_append_write(&m->samples, line, length)
                                        : TR_FAIL(TR_ERR_FIT, "out of host memory");
    free(line);
    return status;
}

tr_status tr_metrics_sync(const tr_metrics *m) {
    TR_TRY(tr_append_sync(&m->lines));
    TR_TRY(tr_append_sync(&m->answers));
    return tr_append_sync(&m->samples);
}

void tr_metrics_close(tr_metrics *metrics) {
    if (!metrics) return;
    tr_append_close(&metrics->lines);
    tr_append_close(&metrics->events);
    tr_append_close(&metrics->answers);
    tr_append_close(&metrics->samples);
    free(metrics);
}
