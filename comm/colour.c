#include "comm/colour.h"

#include <stdbool.h>

static bool touches(const int *a, const int *b) {
    return a[0] == b[0] || a[0] == b[1] || a[1] == b[0] || a[1] == b[1];
}

static bool taken(const int (*edge)[2], const int *colour, int which, int candidate) {
    for (int i = 0; i < which; i++)
        if (colour[i] == candidate && touches(edge[i], edge[which])) return true;
    return false;
}

int tr_colour_edges(const int (*edge)[2], int edges, int *colour) {
    int colours = 0;
    for (int i = 0; i < edges; i++) {
        colour[i] = 0;
        while (taken(edge, colour, i, colour[i])) colour[i]++;
        if (colour[i] >= colours) colours = colour[i] + 1;
    }
    return colours;
}
