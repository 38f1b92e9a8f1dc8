# Two jobs of several ranks start at about the same time in one log.dir.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
pick_layout
reference
draw_moment
pick first "" --resume=auto
pick second "" --resume --resume=auto
what="$ranks ranks (${layout[*]}), '$first' and '$second' $moment"

# shellcheck disable=SC2086 # no word, or one
{
    launch run run.1 $first
    one=$job
    await_moment run
    launch run run.2 $second
    two=$job
}
code_of=()
for job in $one $two; do
    until_true 120 gone "$job" || { fail "run: it still runs after 120 s"; descendants "$job" | xargs kill -9; }
    code=0
    wait "$job" 2>/dev/null || code=$?
    code_of+=("$code")
done
what+=", exit codes ${code_of[*]}"
done_by=0
for k in 0 1; do
    err=run.$((k + 1)).err
    case ${code_of[k]} in
        0) done_by=$((done_by + 1)) ;;
        66 | 78)
            [[ $(wc -l <$err) == 1 ]] || fail "run: not one sentence: $(<$err)"
            grep -Eq "^trireme: ('run' is in use by process [0-9]+ on host |'run' contains another run: |there is no checkpoint under )" $err ||
                fail "run: said $(<$err)"
            ;;
        *) fail "run: exit code ${code_of[k]}: $(<$err)" ;;
    esac
done
((done_by)) || fail "run: neither job did its work"
until_true 60 none_left || fail "run: processes are left: $(ranks_of_job | tr '\n' ' ')"
count_steps run
((steps == 60)) || fail "run: its metrics have $steps lines"
same_curve run whole
same_tensors run whole 60
