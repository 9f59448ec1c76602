# Every program in every mode, our library at one end and librdmacm at the other, in both roles.
sizes() {
    # Those of `rstream -S all`.
    size=64
    while [ $size -lt 4194304 ]; do
        echo $size
        [ $size = 64 ] || echo $((size + size / 2))
        size=$((size * 2))
    done
    echo $size
}
# How often, so that a turn moves a few megabytes at most: `-S all` repeats as suits hardware.
often() {
    if [ $1 -lt 65536 ]; then echo "-I 20 -C 5"; elif [ $1 -lt 1048576 ]; then echo "-I 4 -C 5"; else echo "-I 1 -C 2"; fi
}
for ends in "ours theirs" "theirs ours"; do
    echo "== $ends"
    for size in $(sizes); do
        turn $ends rstream -S $size $(often $size) -T v -T b
    done
    for size in 64 4096 65536 1048576 4194304; do
        few="-S $size $(often $size) -T v"
        turn $ends rstream $few
        turn $ends rstream $few -T n
        turn $ends rstream $few -T a
        turn $ends riostream $few
        turn $ends riostream $few -T b
        turn $ends riostream $few -T n
        turn $ends riostream $few -T a
    done
    few="-S 10000 -I 10 -C 5 -T v -T b"
    turn $ends rstream $few -T r
    turn $ends rstream $few -T a -T n
    turn $ends rstream $few -k 1
    turn $ends rstream $few -i 0
    turn $ends rstream $few -i 256
    turn $ends rstream $few -B 4096
    turn $ends rstream $few -B 32768
    turn $ends rstream $few -B 4000000
    turn $ends riostream $few -i 0
    turn $ends riostream $few -B 32768
    forked $ends $few
    for bytes in 1 3000000 30000000; do copy $ends $bytes; done
done
echo "== datagrams"
datagrams ours ours; line $? "ours to ours: udpong -S 1000 -C 50"
# librdmacm's need InfiniBand: it asks for an address without a global route, which RoCE has not.
if datagrams theirs theirs; then
    for ends in "ours theirs" "theirs ours"; do
        datagrams $ends; line $? "$ends: udpong -S 1000 -C 50"
    done
else
    echo "skipped: udpong with librdmacm, which cannot do it with itself here either: $(grep -v ^name /tmp/said)"
fi
echo "== killed"
killed ours theirs server
killed theirs ours client
killed ours ours server
killed ours ours client
stays theirs ours server
stays theirs theirs server
stays ours theirs client
stays theirs theirs client
dmesg | grep -i "rxe.*error\|non-flush" || true
