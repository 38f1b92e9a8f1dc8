# For scripts that read the table of `trireme plan`: awk functions over the rows and their lists of ranks, like 0,2-3.
plan_table='
function is_row() { return $1 ~ /^[0-9]+([,-][0-9]+)*(,\.\.\.)?$/ && NF == 12 }
# How many ranks the list has, at least `from` and at most `to`.
function ranks_between(list, from, to,    ranges, ends, first, last, n, k, count) {
    n = split(list, ranges, ",")
    for (k = 1; k <= n; k++) {
        if (ranges[k] !~ /^[0-9]/) continue
        last = split(ranges[k], ends, "-")
        first = ends[1] + 0 > from ? ends[1] + 0 : from
        last = ends[last] + 0 < to ? ends[last] + 0 : to
        if (first <= last) count += last - first + 1
    }
    return count + 0
}
function has_rank(list, rank) { return ranks_between(list, rank, rank) == 1 }
function ranks_of(list) { return ranks_between(list, 0, 1e9) }
'
