# Kills a rank at random moments of a job that starts again.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
pick_layout
[[ $ranks != 1 ]] || { ranks=2 layout=(parallel.dp=2); }
reference
launcher=(--restarts 2)
pick deaths 1 1 1 2 3
what="$ranks ranks (${layout[*]}), $deaths deaths:"

launch run run
lost="" killed=0
begun() { cat run.err 2>/dev/null | grep -c "^trireme: the job starts again (restart [12] of 2)$"; }
found() {
    gone "$job" && return
    (($(begun) == killed)) || return 1 # before, they are the ranks of a job that ends
    lost=$(rank_process "$victim")
    [[ -n $lost ]]
}
for ((death = 1; death <= deaths; death++)); do
    draw victim "$ranks"
    draw_moment
    what+=" rank $victim $moment;"
    lost=""
    until_true 60 found || true
    [[ -n $lost ]] || break
    await_moment run
    kill -KILL "$lost" 2>/dev/null && killed=$((killed + 1))
done
ends run
count_steps run
what+=" $killed killed, exit code $code"
restarts=$(begun) || true
if ((killed < 3)); then
    [[ $code == 0 ]] || fail "run: exit code $code, not 0: $(<run.err)"
    ((restarts <= killed)) || fail "run: $restarts restarts after $killed deaths: $(<run.err)"
else
    # A rank that had done its last step leaves nothing to start again for.
    [[ $code == 77 || $code == 0 ]] || fail "run: exit code $code, not 77: $(<run.err)"
    [[ $restarts == 2 ]] || fail "run: $restarts restarts, not 2: $(<run.err)"
fi
if [[ $code == 0 ]]; then
    same_curve run whole
    same_tensors run whole 60
    [[ $(field run step | sort | uniq -d) == "" ]] || fail "run: a step is recorded twice"
else
    launcher=()
    goes_on run
fi
