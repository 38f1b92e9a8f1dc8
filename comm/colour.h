/* Edge colouring. */
#pragma once

/* Sets colour[i] >= 0 for every edge {edge[i][0], edge[i][1]}, so that two edges that share an end
 * have different colours. Edges of one colour can then be set up at the same time, and colour by
 * colour no ranks wait for each other in a cycle. Depends only on the order of the edges. Returns
 * the number of colours: at most twice the largest number of edges at one end, minus one. */
int tr_colour_edges(const int (*edge)[2], int edges, int *colour);
