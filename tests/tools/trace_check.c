/* trace_check FILE PROCESSES ARROWS: exits with 0 when the file is a valid trace with these
 * numbers. */
#include "support/trace_check.h"

#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    FILE *file = fopen(argv[1], "rb");
    if (!file) return 66;
    char *text = calloc(1 << 24, 1);
    if (!text) return 1;
    size_t length = fread(text, 1, (1 << 24) - 1, file);
    (void)fclose(file);
    trace_facts facts = {0};
    const char *fault = length ? trace_fault(text, &facts) : "empty";
    free(text);
    if (!fault && (facts.processes != atoi(argv[2]) || facts.arrows != atoi(argv[3])))
        fault = "the numbers of processes or arrows differ from those expected";
    if (!fault) return 0;
    printf("%s: %s (%d processes, %d arrows)\n", argv[1], fault, facts.processes, facts.arrows);
    return 1;
}
