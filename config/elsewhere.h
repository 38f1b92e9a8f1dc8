/* Names that keys have in other programs. */
#pragma once

/* Returns the key that other programs call by this name, with '-' or '_' between its words, or
 * NULL. */
const char *tr_key_elsewhere(const char *name);
