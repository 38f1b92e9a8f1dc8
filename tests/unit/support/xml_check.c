#include "support/xml_check.h"

#include "base/utf8.h"

bool test_is_xml(const char *text) {
    if (!tr_utf8_is_valid((const uint8_t *)text, strlen(text))) return false;
    char open[64][32];
    int depth = 0, roots = 0;
    for (const char *c = text; *c;) {
        if (*c == '&') {
            if (strncmp(c, "&amp;", 5) != 0 && strncmp(c, "&lt;", 4) != 0 &&
                strncmp(c, "&gt;", 4) != 0)
                return false;
            c++;
        } else if (*c != '<') {
            if (depth == 0 && !isspace((unsigned char)*c)) return false;
            if ((unsigned char)*c == 0x7f || ((unsigned char)*c < 0x20 && *c != '\n')) return false;
            c++;
        } else {
            bool closing = c[1] == '/';
            c += closing ? 2 : 1;
            char name[32];
            int n = 0;
            while (isalnum((unsigned char)*c) && n < 31) name[n++] = *c++;
            name[n] = 0;
            if (!n) return false;
            while (isspace((unsigned char)*c)) {
                while (isspace((unsigned char)*c)) c++;
                if (*c == '>' || *c == '/') break;
                while (isalnum((unsigned char)*c) || *c == '-') c++;
                if (c[0] != '=' || c[1] != '"') return false;
                for (c += 2; *c && *c != '"'; c++)
                    if (*c == '<' || *c == '&') return false;
                if (!*c++) return false;
            }
            bool empty = *c == '/';
            if (empty) c++;
            if (*c++ != '>') return false;
            if (closing) {
                if (!depth || strcmp(open[--depth], name) != 0) return false;
            } else if (!empty) {
                if (depth == 0 && roots++) return false;
                if (depth == 64) return false;
                memcpy(open[depth++], name, sizeof name);
            }
        }
    }
    return depth == 0 && roots == 1;
}

int test_count(const char *text, const char *word) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}
