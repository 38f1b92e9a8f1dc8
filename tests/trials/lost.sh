# Kills or stops a rank at a random moment of a run, which may be the start of MPI.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
pick_layout
[[ $ranks != 1 ]] || { ranks=2 layout=(parallel.dp=2); }
reference
pick signal KILL KILL STOP
draw victim "$ranks"
draw_moment
what="rank $victim of $ranks (${layout[*]}), SIG$signal $moment"

launch run run
found() { gone "$job" || lost=$(rank_process "$victim"); [[ -n $lost ]]; }
lost=""
until_true 60 found || true
await_moment run
count_steps run
before=$steps
if [[ -n $lost ]] && kill -"$signal" "$lost" 2>/dev/null; then
    ends run
    what+=", $before steps done, exit code $code"
    if ((code == 0)); then # the signal came after the rank had finished
        [[ $(last_step run) == 60 ]] || fail "run: ended with 0 after step $(last_step run)"
    else
        [[ $code == 77 ]] || fail "run: exit code $code, not 77: $(<run.err)"
        [[ $(grep -c "^trireme: " run.err) == 1 ]] || fail "run: not one sentence: $(<run.err)"
        # A rank that has not joined the job yet, or has finished its work, cannot be named.
        grep -Eq "^trireme: (lost rank $victim [^0-9]*.*pid $lost\b|.*(before (rank $victim|[0-9]+ ranks) had begun|after [0-9]+ of $ranks ranks had finished))" run.err ||
            fail "run: rank $victim, process $lost, is not named: $(<run.err)"
        if compgen -G "run/ckpt/step-*" >/dev/null; then
            "$trireme" ckpt verify run >verify.out 2>&1 || fail "run: $(<verify.out)"
            # A step that was committed at this moment may be missing in the sentence. Saves in the background are
            # committed before the next one begins.
            known=15
            [[ $in_background == false ]] || known=30
            [[ -e run/ckpt/step-00000015 ]] && count_steps run && ((steps > known)) && ! grep -q -- "--resume" run.err &&
                fail "run: nothing about --resume: $(<run.err)"
            true
        else
            ! grep -q -- "--resume" run.err || fail "run: there is nothing to resume: $(<run.err)"
        fi
    fi
else
    ends run
    what+=", over before"
fi
goes_on run
