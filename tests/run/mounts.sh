# shellcheck shell=bash
# For tests that mount: goes on in a namespace of its own, in which the test may mount and nothing else sees it.
# A test sources this first, with its own arguments; without the right it is skipped (77).

test_name=$(basename "$0")
if [[ -z ${TRIREME_TEST_MOUNTS:-} ]]; then
    unshare --mount --map-root-user true 2>/dev/null ||
        { echo "$test_name: skipped: this user may not mount a tmpfs (unshare failed)"; exit 77; }
    TRIREME_TEST_MOUNTS=1 exec unshare --mount --map-root-user bash "$0" "$@"
fi

# mount_empty FOLDER OPTIONS: mounts an empty file system there.
mount_empty() { mount -t tmpfs -o "$2" tmpfs "$1" || { echo "$test_name: skipped: mount failed"; exit 77; }; }
