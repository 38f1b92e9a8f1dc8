/* The book of plans: which of the plans that a library offers an operator takes, by its
 * description, so that a resumed run, and the replicas of a stage, take the same.
 *
 * Its text is a line "trireme plans 1", then a line for each description, in alphabetical order:
 *   matmul m 64 n 128 k 256 a bf16 b bf16 c f32 trans_a accumulate = gemm:jit
 * A description is the operator's name with the fields that make two descriptions equal, and what a
 * plan depends on of the context; after " = " is the plan's name, as tr_op.plan has it. */
#pragma once

#include "device/op.h"

enum { TR_PLAN_KEY = 320 }; /* bytes of a description's text, with the 0 at its end */

typedef struct tr_plan_book tr_plan_book;

/* Creates an empty book; the caller releases *out with tr_plan_book_destroy. */
tr_status tr_plan_book_create(tr_plan_book **out);
void tr_plan_book_destroy(tr_plan_book *book);

/* Writes the description that is the key of an operator to text[size]; "" for operators for which
 * no library has several plans. */
void tr_plan_key(const tr_op_context *context, const tr_op_desc *desc, char *text, size_t size);

/* Returns the plan of a description, or NULL; it is valid until the book is changed. */
const char *tr_plan_book_find(const tr_plan_book *book, const char *key);
/* Adds a plan. Fails with TR_ERR_INTERNAL when the description has one. */
tr_status tr_plan_book_add(tr_plan_book *book, const char *key, const char *plan);
int tr_plan_book_count(const tr_plan_book *book);

/* Writes the book's text to *text (malloc'd; the caller frees it). */
tr_status tr_plan_book_print(const tr_plan_book *book, char **text);
/* Adds the plans of a text. Fails with TR_ERR_DATA on the first line that is wrong, with `name`,
 * its number, the fault and the remedy; the book may then have some of the lines. */
tr_status tr_plan_book_read(tr_plan_book *book, const char *text, size_t length, const char *name);

/* Notes that a description was prepared without a plan of the book. */
tr_status tr_plan_book_want(tr_plan_book *book, const char *key, const tr_op_desc *desc);
/* Returns the noted description at `index`, in the order of the first note, and its key; NULL from
 * the end of the list on. Valid until the book is changed. */
const tr_op_desc *tr_plan_book_wanted(const tr_plan_book *book, int index, const char **key);

/* Counts a plan of the book that the library does not offer, or only with more scratch than it
 * proposes: the operator takes the proposed plan. */
void tr_plan_book_refuse(tr_plan_book *book);
int tr_plan_book_refused(const tr_plan_book *book);
