#include "text/unicode.h"

#include "base/memory.h"

#include <utf8proc.h>

/* Code points that Unicode 15.1 and 16 assigned; utf8proc 2.8 knows Unicode 15. The other code
 * points of these versions are neither letters, numbers nor marks. */
static const struct {
    uint32_t first, last;
    uint8_t set;
} since_14[] = {
#define MARK      (TR_CP_UPPER | TR_CP_LOWER | TR_CP_WORD)
#define UPPERCASE (TR_CP_LETTER | TR_CP_UPPER | TR_CP_WORD)
#define LOWERCASE (TR_CP_LETTER | TR_CP_LOWER | TR_CP_WORD)
#define CASELESS  (TR_CP_LETTER | TR_CP_UPPER | TR_CP_LOWER | TR_CP_WORD)
#define DIGIT     (TR_CP_NUMBER | TR_CP_WORD)
    {0x897, 0x897, MARK},          {0xCF3, 0xCF3, MARK},
    {0xECE, 0xECE, MARK},          {0x1C89, 0x1C89, UPPERCASE},
    {0x1C8A, 0x1C8A, LOWERCASE},   {0xA7CB, 0xA7CC, UPPERCASE},
    {0xA7CD, 0xA7CD, LOWERCASE},   {0xA7DA, 0xA7DA, UPPERCASE},
    {0xA7DB, 0xA7DB, LOWERCASE},   {0xA7DC, 0xA7DC, UPPERCASE},
    {0x105C0, 0x105F3, CASELESS},  {0x10D40, 0x10D49, DIGIT},
    {0x10D4A, 0x10D4F, CASELESS},  {0x10D50, 0x10D65, UPPERCASE},
    {0x10D69, 0x10D6D, MARK},      {0x10D6F, 0x10D6F, CASELESS},
    {0x10D70, 0x10D85, LOWERCASE}, {0x10EC2, 0x10EC4, CASELESS},
    {0x10EFC, 0x10EFF, MARK},      {0x1123F, 0x11240, CASELESS},
    {0x11241, 0x11241, MARK},      {0x11380, 0x11389, CASELESS},
    {0x1138B, 0x1138B, CASELESS},  {0x1138E, 0x1138E, CASELESS},
    {0x11390, 0x113B5, CASELESS},  {0x113B7, 0x113B7, CASELESS},
    {0x113B8, 0x113C0, MARK},      {0x113C2, 0x113C2, MARK},
    {0x113C5, 0x113C5, MARK},      {0x113C7, 0x113CA, MARK},
    {0x113CC, 0x113D0, MARK},      {0x113D1, 0x113D1, CASELESS},
    {0x113D2, 0x113D2, MARK},      {0x113D3, 0x113D3, CASELESS},
    {0x113E1, 0x113E2, MARK},      {0x116D0, 0x116E3, DIGIT},
    {0x11BC0, 0x11BE0, CASELESS},  {0x11BF0, 0x11BF9, DIGIT},
    {0x11F00, 0x11F01, MARK},      {0x11F02, 0x11F02, CASELESS},
    {0x11F03, 0x11F03, MARK},      {0x11F04, 0x11F10, CASELESS},
    {0x11F12, 0x11F33, CASELESS},  {0x11F34, 0x11F3A, MARK},
    {0x11F3E, 0x11F42, MARK},      {0x11F50, 0x11F59, DIGIT},
    {0x11F5A, 0x11F5A, MARK},      {0x1342F, 0x1342F, CASELESS},
    {0x13440, 0x13440, MARK},      {0x13441, 0x13446, CASELESS},
    {0x13447, 0x13455, MARK},      {0x13460, 0x143FA, CASELESS},
    {0x16100, 0x1611D, CASELESS},  {0x1611E, 0x1612F, MARK},
    {0x16130, 0x16139, DIGIT},     {0x16D40, 0x16D6C, CASELESS},
    {0x16D70, 0x16D79, DIGIT},     {0x18CFF, 0x18CFF, CASELESS},
    {0x1B132, 0x1B132, CASELESS},  {0x1B155, 0x1B155, CASELESS},
    {0x1CCF0, 0x1CCF9, DIGIT},     {0x1D2C0, 0x1D2D3, TR_CP_NUMBER},
    {0x1DF25, 0x1DF2A, LOWERCASE}, {0x1E030, 0x1E06D, CASELESS},
    {0x1E08F, 0x1E08F, MARK},      {0x1E4D0, 0x1E4EB, CASELESS},
    {0x1E4EC, 0x1E4EF, MARK},      {0x1E4F0, 0x1E4F9, DIGIT},
    {0x1E5D0, 0x1E5ED, CASELESS},  {0x1E5EE, 0x1E5EF, MARK},
    {0x1E5F0, 0x1E5F0, CASELESS},  {0x1E5F1, 0x1E5FA, DIGIT},
    {0x2B739, 0x2B739, CASELESS},  {0x2EBF0, 0x2EE5D, CASELESS},
    {0x31350, 0x323AF, CASELESS},
};

/* Symbols that \w takes along: circled letters are alphabetic, and the two joiners. */
static const uint32_t word_symbols[][2] = {
    {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};

static uint8_t set_of(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return UPPERCASE;
    case UTF8PROC_CATEGORY_LL: return LOWERCASE;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CASELESS;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return MARK;
    case UTF8PROC_CATEGORY_ND: return DIGIT;
    case UTF8PROC_CATEGORY_NL: return TR_CP_NUMBER | TR_CP_WORD;
    case UTF8PROC_CATEGORY_NO: return TR_CP_NUMBER;
    case UTF8PROC_CATEGORY_PC: return TR_CP_WORD;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return TR_CP_SPACE;
    default: return 0;
    }
}

/* Marks what NFC changes: characters that a decomposition reorders, that are not their own NFC, and
 * that join the character before them. */
static void mark_unstable(uint8_t *table, uint32_t cp) {
    const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)cp);
    if (property->combining_class) table[cp] |= TR_CP_UNSTABLE;
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type) return;
    utf8proc_int32_t part[8];
    int boundary = 0;
    utf8proc_ssize_t parts =
        utf8proc_decompose_char((utf8proc_int32_t)cp, part, 8, UTF8PROC_DECOMPOSE, &boundary);
    if (parts < 1 || parts > 8) return;
    for (utf8proc_ssize_t i = 1; i < parts; i++) table[part[i]] |= TR_CP_UNSTABLE;
    if (utf8proc_normalize_utf32(part, parts, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1 ||
        part[0] != (utf8proc_int32_t)cp)
        table[cp] |= TR_CP_UNSTABLE;
}

tr_status tr_cp_table(uint8_t **out) {
    TR_TRY(tr_calloc(TR_CP_COUNT, 1, out));
    uint8_t *table = *out;
    for (uint32_t cp = 0; cp < TR_CP_COUNT; cp++) table[cp] |= set_of(cp);
    for (size_t i = 0; i < sizeof since_14 / sizeof *since_14; i++)
        for (uint32_t cp = since_14[i].first; cp <= since_14[i].last; cp++)
            table[cp] = since_14[i].set;
    for (uint32_t cp = 9; cp <= 13; cp++) table[cp] = TR_CP_SPACE;
    for (size_t i = 0; i < sizeof word_symbols / sizeof *word_symbols; i++)
        for (uint32_t cp = word_symbols[i][0]; cp <= word_symbols[i][1]; cp++)
            table[cp] |= TR_CP_WORD;
    table['\n'] = table['\r'] = TR_CP_SPACE | TR_CP_NEWLINE;
    table[0x85] = TR_CP_SPACE;
    for (uint32_t cp = 0x300; cp < TR_CP_COUNT; cp++) mark_unstable(table, cp);
    for (uint32_t cp = 0x1160; cp < 0x1200; cp++) table[cp] |= TR_CP_UNSTABLE; /* Hangul V and T */
    return TR_OK;
}

bool tr_cp_since(size_t i, uint32_t *first, uint32_t *last, uint8_t *set) {
    if (i >= sizeof since_14 / sizeof *since_14) return false;
    *first = since_14[i].first;
    *last = since_14[i].last;
    *set = since_14[i].set;
    return true;
}
