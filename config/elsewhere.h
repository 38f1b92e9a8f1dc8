/* Names that keys, commands, options and values have in other programs. */
#pragma once

#include "base/nearest.h"

/* Returns the key that other programs call by this name, with '-' or '_' between its words and in
 * small or capital letters, as all names here; or NULL. */
const char *tr_key_elsewhere(const char *name);
/* Returns the command that does what other programs' command of this name does, in backticks and
 * with its arguments, or NULL. */
const char *tr_command_elsewhere(const char *name);
/* Returns what to say of other programs' option of this name (without its dashes), which the
 * command has under no name, of their command, for "trireme", or of their key, for "key"; or
 * NULL. */
const char *tr_remark_elsewhere(const char *name, const char *command);
/* Returns the option, as in `usage` and with its value, that other programs' option of this name
 * (without its dashes) is there, or the operand, which is in capital letters; or NULL. */
const char *tr_option_elsewhere(const char *name, const char *usage);
/* Returns the hint at the word that `value` means: the one that other programs call so, and else as
 * tr_nearest_hint. */
tr_hint tr_value_hint(const char *value, const char *const *words, int count);
