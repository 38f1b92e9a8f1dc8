# Sends a signal that asks a run to end, to one or all of its processes, at a random moment; half of the time
# a second one follows.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
pick_layout
reference
pick signal TERM INT HUP
pick target launcher mpirun rank group every
[[ $ranks != 1 ]] || target=launcher
draw victim "$ranks"
draw_moment
draw twice 2
draw gap 100
number=$(kill -l "$signal")
what="$ranks ranks (${layout[*]}), SIG$signal to $target"
[[ $target != rank ]] || what+=" $victim"
what+=" $moment"

# aims: sets $aim to the processes that get the signal.
aims() {
    local p
    case $target in
        launcher) aim=("$job") ;;
        mpirun) mapfile -t aim < <(for p in $(descendants "$job"); do [[ $(readlink "/proc/$p/exe") == *orterun ]] && echo "$p"; done) ;;
        rank) mapfile -t aim < <(rank_process "$victim") ;;
        group) aim=("$job") ;;
        every) mapfile -t aim < <(descendants "$job" | shuf --random-source=<(yes "$seed")) ;;
    esac
}
ready() {
    local p
    gone "$job" && return
    aims
    ((${#aim[@]})) || return 1
    [[ $target != every ]] || ((${#aim[@]} >= ranks + 1)) || return 1
    for p in "${aim[@]}"; do catches "$p" "$number" || return 1; done
}
send() {
    if [[ $target == group ]]; then kill -"$signal" -- "-$job"; else kill -"$signal" "${aim[@]}"; fi 2>/dev/null || true
}

launch run run
until_true 60 ready || fail "run: no process for the signal: ${aim[*]}"
await_moment run
count_steps run
before=$steps
send
if ((twice)); then
    nap "$gap"
    what+=", again after $gap ms"
    send
fi
ends run
what+=", $before steps done, exit code $code"
case $code in
    0) [[ $(last_step run) == 60 ]] || fail "run: ended with 0 after step $(last_step run)" ;;
    75)
        count_steps run
        if grep -q "^trireme: stopped by a signal before a step was taken" run.err; then
            [[ $steps == 0 ]] || fail "run: said $(<run.err) after step $steps"
        else
            grep -Eq "^trireme: .*after step $steps, which is saved.*--resume" run.err || fail "run: said $(<run.err)"
            intact run "$steps"
        fi
        ;;
    77)
        ((twice)) || fail "run: 77 after one signal: $(<run.err)"
        grep -q "^trireme: .*without saving" run.err || fail "run: said $(<run.err)"
        ;;
    *) fail "run: exit code $code: $(<run.err)" ;;
esac
! grep -v "^trireme: " run.err || fail "run: said what is not a sentence of its own: $(<run.err)"
goes_on run
