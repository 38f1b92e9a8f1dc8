/* What of a model is trained, and how fast: the keys train.freeze and train.lr_scale. A pattern is
 * a glob (*, ?, [...]) on the name of a global tensor; all uses of a tied tensor have one name. */
#pragma once

#include "layers/model.h"

/* Sets frozen, has_grad and lr_scale of a parameter by its tensors' names. tuning may be NULL: all
 * is trained. Fails with TR_ERR_INTERNAL when the tensors of the parameter are tuned differently:
 * the layer makes several parameters of them, by tr_tuning_alike. */
tr_status tr_tuning_apply(const tr_tuning *tuning, tr_param *param);
/* Returns true when two tensors are both frozen, or both trained equally fast, and need not be
 * apart, so that they may belong to one parameter. */
bool tr_tuning_alike(const tr_tuning *tuning, const char *name_a, const char *name_b);

/* Returns true when train.freeze freezes a tensor of the model that the other one's does not. */
bool tr_tuning_freezes_more(const tr_model *model, const tr_tuning *tuning, const tr_tuning *other);

/* Returns true when the tuning is that of a model of which all is trained equally fast. */
bool tr_tuning_is_plain(const tr_tuning *tuning);
/* Fails with TR_ERR_CONFIG, naming the key, when train.lr_scale is not a list of scales and
 * patterns. */
tr_status tr_tuning_check(const tr_tuning *tuning);
/* Sets no_backward of the layers before the first one that has a trained parameter, which then have
 * no FLOPs of I and W. */
void tr_tuning_skip_backward(tr_model *model);
/* Fails with TR_ERR_CONFIG when a pattern matches no tensor of the model, naming the nearest, or
 * when nothing is trained. */
tr_status tr_tuning_check_model(const tr_model *model);
