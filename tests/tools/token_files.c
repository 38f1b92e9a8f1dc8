/* Writes the bytes of its input as tokens in a format of other programs, from the formats'
 * descriptions and without Trireme's code. A document ends at the end of every line.
 * usage: token_files u16|u32|llmc|llmc3|megatron OUT <BYTES      (megatron: OUT.bin and OUT.idx) */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(FILE *f, uint64_t number, int width) {
    for (int i = 0; i < width; i++) (void)fputc((int)(number >> 8 * i & 255), f);
}

static FILE *make(const char *path, const char *end) {
    char name[4096];
    (void)snprintf(name, sizeof name, "%s%s", path, end);
    FILE *f = fopen(name, "wb");
    if (!f) exit(74);
    return f;
}

static void put_index(FILE *f, const unsigned char *byte, size_t count) {
    size_t documents = 0, from = 0;
    for (size_t i = 0; i < count; i++) documents += byte[i] == '\n' || i + 1 == count;
    (void)fwrite("MMIDIDX\0\0", 1, 9, f);
    put(f, 1, 8);
    put(f, 8, 1); /* unsigned, 16 bits */
    put(f, documents, 8);
    put(f, documents + 1, 8);
    for (size_t i = 0; i < count; i++)
        if (byte[i] == '\n' || i + 1 == count) {
            put(f, i + 1 - from, 4);
            from = i + 1;
        }
    from = 0;
    for (size_t i = 0; i < count; i++)
        if (byte[i] == '\n' || i + 1 == count) {
            put(f, 2 * from, 8);
            from = i + 1;
        }
    for (size_t d = 0; d <= documents; d++) put(f, d, 8);
}

int main(int argc, char **argv) {
    static unsigned char byte[1 << 22];
    size_t count = fread(byte, 1, sizeof byte, stdin);
    if (argc != 3) return 64;
    const char *format = argv[1];
    const int megatron = !strcmp(format, "megatron"), llmc3 = !strcmp(format, "llmc3"),
              llmc = llmc3 || !strcmp(format, "llmc");
    const int width = llmc3 || !strcmp(format, "u32") ? 4 : 2;
    FILE *f = make(argv[2], megatron ? ".bin" : "");
    if (llmc) {
        put(f, llmc3 ? 20240801 : 20240520, 4);
        put(f, llmc3 ? 7 : 1, 4);
        put(f, count, 4);
        for (int i = 3; i < 256; i++) put(f, 0, 4);
    }
    for (size_t i = 0; i < count; i++) put(f, byte[i], width);
    if (fclose(f) != 0) return 74;
    if (!megatron) return 0;
    f = make(argv[2], ".idx");
    put_index(f, byte, count);
    return fclose(f) != 0 ? 74 : 0;
}
