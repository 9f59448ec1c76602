# Streams over verbs between processes of one guest, ours at both ends. Each turn prints its name, what both ends printed, and how they ended.
ours="shortwire run --rsocket=api --prefer verbs --"

# A client that comes too early is refused, and tries again.
meet() {
    timeout 300 $1 > /tmp/served 2>&1 & server=$!
    for try in $(seq 60); do
        sleep 1
        timeout 300 $2 > /tmp/said 2>&1
        status=$?
        grep -q refused /tmp/said || break
    done
    cat /tmp/said
    echo "client: $status"
}

# NAME OPTIONS
stream() {
    echo "== $1"
    port=$((port + 1))
    meet "$ours rstream -p $port -b 10.8.0.1 $2" "$ours rstream -p $port -s 10.8.0.1 $2"
    wait $server
    echo "server: $?"
    cat /tmp/served
}

port=7000
small="-S 64 -I 100 -C 2 -T v"
large="-S 65536 -I 10 -C 10 -T v"
stream blocking "$small -T b"
stream nonblocking "$large -T n"
stream async "$large -T a"

echo "== own"
export SHORTWIRE_PREFER=verbs
meet "shortwire rstream --listen --bind 10.8.0.1 -p 7100" \
    "shortwire rstream --server 10.8.0.1 -p 7100 -S 64,64K --verify --repeat 1 --seconds 0.05 --json"
unset SHORTWIRE_PREFER
kill $server; wait $server 2>/dev/null

echo "== repoll"
timeout 600 $ours repoll-c 10.8.0.1 7300 2>&1
echo "ended: $?"

echo "== killed"
endless="-p 7200 -S 65536 -I 100000 -C 1000"
$ours rstream -b 10.8.0.1 $endless > /dev/null 2>&1 & server=$!
# Listeners of RDMA are in no table of sockets, but the kernel can list them, and queue pairs that are connected.
tries=0
until rdma resource show cm_id | grep -q "state LISTEN .*:7200 "; do
    tries=$((tries + 1)); [ $tries -lt 3000 ] || break
    sleep 0.1
done
timeout 300 $ours rstream -s 10.8.0.1 $endless 2>&1 & client=$!
tries=0
until [ $(rdma resource show qp | grep -c "type RC .*state RTS") -ge 2 ]; do
    tries=$((tries + 1)); [ $tries -lt 3000 ] && [ -d /proc/$client ] || break
    sleep 0.1
done
sleep 3
kill -0 $client && kill -9 $server
wait $client
echo "client: $?"
