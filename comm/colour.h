/* Edge colouring. */
#pragma once

/* colour[i] >= 0 for every edge {edge[i][0], edge[i][1]}, so that two edges that share an end
 * differ: the edges of one colour can be set up at the same time, and colour by colour no two ranks
 * wait for each other in a circle. Depends on the order of the edges alone. Returns the number of
 * colours: at most twice the largest number of edges at one end, less one. */
int tr_colour_edges(const int (*edge)[2], int edges, int *colour);
