/* Names that keys and commands have in other programs. */
#pragma once

/* Returns the key that other programs call by this name, with '-' or '_' between its words, or
 * NULL. */
const char *tr_key_elsewhere(const char *name);
/* Returns the command that does what other programs' command of this name does, in backticks and
 * with its arguments, or NULL. */
const char *tr_command_elsewhere(const char *name);
