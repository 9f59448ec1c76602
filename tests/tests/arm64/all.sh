# In the guest: whole-system tests, each in namespaces of its own, as `make check` runs them. "tree" is where they look for
# what they run; "names" and "only" are patterns for their names, which must fit both.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/root LC_ALL=C.UTF-8
# An emulated processor takes ten to twenty times as long, and shares with others what emulates it.
export SHORTWIRE_TEST_PATIENCE=15 SHORTWIRE_TEST_MIB=4 SHORTWIRE_TEST_WALKS=2 CHECK_RUN=arm64
limit=3600
mkdir -p "$tree"
mount -t ext4 /dev/vdc "$tree" && mount -t tmpfs none /tmp && chmod 1777 /tmp || exit 1
ldconfig
ip link set lo up
echo "pages of $(getconf PAGESIZE) bytes, Linux $(uname -r)"

inside='mount -t tmpfs none /dev/shm && chmod 1777 /dev/shm && mount -t tmpfs none /run && mount -t tmpfs none /tmp && chmod 1777 /tmp &&
    ip link set lo up || exit 125
"$@"; exit $?'
alone() { unshare --net --mount --pid --fork --kill-child --mount-proc sh -c "$inside" sh "$@"; }

# What the programs of a test wait for that its time limit is about to end.
stuck() {
    for process in /proc/[0-9]*; do
        words=$(tr '\0' ' ' < "$process/cmdline" 2> /dev/null)
        [ -n "$words" ] || continue
        for thread in "$process"/task/*; do
            echo "${thread##*/} $words: $(cat "$thread/wchan" "$thread/syscall" 2> /dev/null | tr '\n' ' ')"
        done
    done
    "$tree/target/release/shortwire" ss -d
}

# Why a test is not run here, if it is not.
excuse() {
    case "$1" in
    *"::alone::"* | *" alone::"*) echo "it measures processor time" ;;
    *" soak::"*) echo "it takes half an hour on a machine: make soak" ;;
    esac
}

failed=0
for program in "$tree"/target/debug/deps/*; do
    name=$(basename "$program") name=${name%-*}
    for test in $("$program" --list 2> /dev/null | sed -n 's/: test$//p'); do
        title="$name $test"
        [[ $title =~ $names && $title =~ $only ]] || continue
        why=$(excuse "$title")
        if [ -n "$why" ]; then
            printf 'skipped: %s: %s\ntest result: ok. 1 passed; 0 failed\n' "$title" "$why"
            continue
        fi
        begun=$SECONDS
        rm -f /out/stuck
        (sleep $((limit - 60)) && stuck > /out/stuck 2>&1) & watch=$!
        alone timeout -k 10 $limit "$program" --exact "$test" --test-threads=1 > /out/said 2>&1 < /dev/null
        status=$?
        pkill -P $watch; wait $watch 2> /dev/null
        # The test is named with its program, so that the last lines of the check tell which it was.
        grep -v '^running 1 test$\|^$' /out/said | sed "s/^test $test/test $name::$test/"
        if ! grep -q '^test result: ' /out/said; then
            echo "test $name::$test ... FAILED"
            echo "test result: FAILED. 0 passed; 1 failed; 0 ignored ($status)"
            cat /out/stuck 2> /dev/null
        fi
        echo "-- $title: $((SECONDS - begun)) s"
        [ $status = 0 ] || failed=1
    done
done
rm -f /out/said /out/stuck
exit $failed
