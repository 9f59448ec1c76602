# One program, first over shared memory, then to the other guest: nothing of it but how it is started is different.
echo "== one program"
sha256sum < /bin/rstream
far "sha256sum < /bin/rstream"
few="-S 4096 -I 50 -C 4 -T v -T b"
timeout $limit shortwire run --rsocket -- rstream -b 127.0.0.1 -p 7471 $few > /tmp/served 2>&1 & server=$!
until grep -q :1D2F /proc/net/tcp; do sleep 0.1; done
timeout $limit shortwire run --rsocket -- rstream -s 127.0.0.1 -p 7471 $few > /tmp/said 2>&1; status=$?
wait $server; echo "server $?" > /tmp/far; cat /tmp/served >> /tmp/far
[ $status = 0 ] && grep -q "^server 0" /tmp/far && grep -q ^custom /tmp/said
line $? "shared memory: rstream $few"
turn ours ours rstream $few

echo "== both roles"
for ends in "ours theirs" "theirs ours"; do
    turn $ends rstream -S 64 -I 50 -C 2 -T v -T b
    turn $ends rstream -S 65536 -I 5 -C 4 -T v -T n
    # librdmacm's client does not do with -T a, see `turn`.
    [ "$ends" = "ours theirs" ] && how=a || how=b
    turn $ends rstream -S 16384 -I 5 -C 4 -T v -T $how -T r
    turn $ends rstream -S 4194304 -I 1 -C 2 -T v
    turn $ends riostream -S 65536 -I 5 -C 4 -T v -T b
    copy $ends 3000000
done
killed ours theirs server
killed theirs ours client
dmesg | grep -i "rxe.*error\|non-flush" || true
