/* llm.c's shards: 256 numbers of 32 bits, of which three count (what the file is, its version, its
 * tokens), then the tokens: 2 bytes each for GPT-2, 4 for Llama 3. */
#include "base/input.h"
#include "data/format_impl.h"

#include <inttypes.h>

enum { HEADER = 1024, LEAST = 12, GPT2 = 20240520, LLAMA3 = 20240801, VALIDATION = 20240522 };

/* llm.c's scripts put these between documents (dev/data): <|endoftext|> of GPT-2, and
 * <|begin_of_text|> of Llama 3, which has another token for the end of a text. */
enum { GPT2_SEPARATOR = 50256, LLAMA3_SEPARATOR = 128000 };

static tr_status no_shard(const char *path, uint32_t magic) {
    return TR_FAIL(TR_ERR_DATA,
                   "the data file '%s' is not a shard of llm.c: byte 0 holds %" PRIu32
                   ", not %d or "
                   "%d%s; set data.format",
                   path, magic, GPT2, LLAMA3,
                   magic == VALIDATION ? " (it is a file of llm.c's multiple choice)" : "");
}

bool tr_format_is_llmc(const char *path) {
    const uint32_t magic = tr_input_magic(path);
    return magic == GPT2 || magic == LLAMA3;
}

tr_status tr_format_open_llmc(const char *path, const tr_source_options *options,
                              tr_source *source) {
    unsigned char header[LEAST];
    (void)options;
    TR_TRY(tr_format_open_file(path, source));
    const int64_t bytes = source->file.bytes;
    if (bytes < HEADER)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64 " bytes, fewer than the header of %d "
                       "bytes with which llm.c's shards begin: it was cut off, or set data.format",
                       path, bytes, HEADER);
    TR_TRY(tr_format_read(&source->file, 0, LEAST, header));
    const uint32_t magic = tr_format_u32(header), version = tr_format_u32(header + 4);
    if (magic != GPT2 && magic != LLAMA3) return no_shard(path, magic);
    const uint32_t known = magic == GPT2 ? 1 : 7;
    if (version != known)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' is a shard of version %" PRIu32 " (byte 4); version "
                       "%" PRIu32 " is known",
                       path, version, known);
    source->first = HEADER;
    source->width = magic == GPT2 ? 2 : 4;
    source->separator = magic == GPT2 ? GPT2_SEPARATOR : LLAMA3_SEPARATOR;
    source->tokenizer_ends = magic == GPT2;
    source->tokens = tr_format_u32(header + 8);
    const int64_t all = HEADER + source->tokens * source->width;
    if (bytes != all)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64 " bytes, but its header (byte 8) says "
                       "%" PRId64 " tokens, which take %" PRId64 " bytes: it %s",
                       path, bytes, source->tokens, all,
                       bytes < all ? "was cut off" : "is damaged, or is not a shard");
    if (source->tokens == 0)
        return TR_FAIL(TR_ERR_DATA, "the data file '%s' has no tokens: name another one (%s)", path,
                       source->key);
    return TR_OK;
}
