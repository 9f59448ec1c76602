# Where the kernel's SMC has its loopback device.

smc_admin ueid SHORTWIRE || exit 1
exchange kernel-both smc "" smc ""
exchange kernel-both-under-run smc "$run" smc "$run"
exchange kernel-client tcp "$run" smc ""
exchange kernel-server smc "" tcp "$run"
exchange ours-both tcp "$run" tcp "$run"

# NAME, what the two ends are started by, and how sockperf is to measure: the figure of its summary.
port=6000
packets() { awk '/ lo:/ { print $3 }' /proc/net/dev; }
figure() {
    name=$1 by=$2 port=$((port + 1))
    shift 2
    $by sockperf server --tcp -i 127.0.0.1 -p $port > /tmp/sockperf-server 2>&1 & server=$!
    until grep -q :$(printf %04X $port) /proc/net/tcp; do sleep 0.1; done
    # Of the kernel's SMC the server's address is seen before the socket listens.
    sleep 1
    before=$(packets)
    $by sockperf "$@" --tcp -i 127.0.0.1 -p $port -t 6 > /tmp/sockperf-client 2>&1 & client=$!
    sleep 4
    shortwire ss -W | grep 127.0.0.1:$port | sed "s/^/ss $name: /"
    wait $client
    echo "packets $name $1 $(($(packets) - before))"
    kill $server
    wait $server 2> /dev/null
    sed -n "s/.*Summary: \(Latency\|Message Rate\|BandWidth\) is \([0-9.]*\) .*/figure $name $1 \2/p" /tmp/sockperf-client | head -n 1
}

echo "== figures"
for round in 1 2 3; do
    for what in "ping-pong -m 64" "throughput -m 64" "throughput -m 16384"; do
        size=${what##* }
        figure tcp-$size "" $what
        figure kernel-$size /tmp/smc_run $what
        figure shortwire-$size "$run" $what
    done
done
