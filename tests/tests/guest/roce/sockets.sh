# TCP programs over the verbs device. Each turn prints its name, and how its ends ended.
over="timeout 600 shortwire run --prefer verbs --"

# Until somebody listens on the port.
listens() {
    tries=0
    until cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ":$(printf %04X $1) [0-9A-F]*:0000 0A "; do
        tries=$((tries + 1)); [ $tries -lt 600 ] || { echo "nobody listens on $1"; return; }
        sleep 0.1
    done
}

# SECONDS, and of which port the upgraded connections are to be shown, when there are any: device and switched directions.
# A machine that emulates may take long for the start and for the switch: it is looked at again until a direction has left TCP,
# or the client has ended. A client must end by the work that it does, not by the time that it takes: on a slow machine there
# would be nothing to see yet.
look() {
    sleep $1
    : > /tmp/seen
    rm -f /tmp/why
    for try in $(seq 200); do
        shortwire ss -d -W > /tmp/all 2> /dev/null
        awk -v port=":$2\$" '$5 == "SMCD" && ($2 ~ port || $3 ~ port) { print "upgraded:", $6, $12 }' /tmp/all > /tmp/now
        [ -s /tmp/now ] && cp /tmp/now /tmp/seen
        grep -qv none /tmp/now && break
        [ -d /proc/$client ] || break
        # Why not, for who reads of a failure.
        grep -q ":$2 " /tmp/all && cp /tmp/all /tmp/why
        # All connections of the port have gone back to TCP, and stay there: to look on would take minutes.
        grep ":$2 " /tmp/all > /tmp/ours
        [ -s /tmp/ours ] && ! grep -Evq 'TCP (STUCK|PEER_BACK)' /tmp/ours && break
    done
    [ -s /tmp/seen ] || cat /tmp/why 2> /dev/null
    cat /tmp/seen
}

# SERVER, CLIENT, PORT and seconds until both are looked at
meet() {
    $over $1 > /tmp/served 2>&1 & server=$!
    listens $3
    $over $2 > /tmp/said 2>&1 & client=$!
    look $4 $3
    wait $client; echo "client: $?"
    wait $server; echo "server: $?"
    cat /tmp/served /tmp/said
}

# Which number is whose.
numbers() {
    for program in $(pidof $1); do
        ls -l /proc/$program/fd | awk '/infiniband/ { print ($9 < 512 ? "low:" : "high:"), $NF }'
    done
}

echo "== devices"
shortwire devices | grep verbs

# Where the emulator keeps a reader from its processor for so long that a full ring is given up (STUCK), a connection stays on TCP for
# all of its bytes: another one is made then.
echo "== transfer"
bytes="threads send 60000000 60000000 3 1"
for at in 7001 7011 7021 7031 7041; do
    meet "transfer-c server $at $bytes" "transfer-c client $at $bytes" $at 1 > /tmp/met
    grep -q '^upgraded: verbs [brt]' /tmp/met && break
    echo "stayed on TCP:"; grep -v ' ok$' /tmp/met
done
cat /tmp/met

echo "== sum"
head -c 5000000 /dev/urandom > /tmp/in
$over nc.openbsd -l 10.8.0.1 7002 > /tmp/got & server=$!
listens 7002
$over nc.openbsd -N 10.8.0.1 7002 < /tmp/in
echo "client: $?"
wait $server; echo "server: $?"
sha256sum < /tmp/in; sha256sum < /tmp/got

echo "== iperf3"
$over iperf3 -s -1 -B 10.8.0.1 -p 7003 > /tmp/served 2>&1 & server=$!
listens 7003
$over iperf3 -c 10.8.0.1 -B 10.8.0.1 -p 7003 -n 64M --bidir > /tmp/said 2>&1 & client=$!
look 0 7003
wait $client; echo "client: $?"
wait $server; echo "server: $?"
cat /tmp/said

echo "== redis"
$over redis-server --port 7004 --bind 127.0.0.1 --save '' --dir /tmp > /tmp/served 2>&1 & server=$!
listens 7004
$over redis-benchmark -p 7004 --csv -n 3000 -c 20 -t get,set,lpush,lrange_300 > /tmp/said 2>&1 & client=$!
look 0 7004
wait $client; echo "client: $?"
cat /tmp/said
# A fork in between, then new connections.
printf 'BGSAVE\r\nQUIT\r\n' | nc 127.0.0.1 7004 -w 60 | head -1
$over redis-benchmark -p 7004 --csv -n 500 -c 2 -t set -d 50000 > /tmp/said 2>&1; echo "after a fork: $?"
kill $server; wait $server 2> /dev/null

echo "== scenes"
port=7100
for scene in proc_fork-c:turns proc_fork-c:beside-a-thread proc_fork-c:same-memory proc_exec-c:exec-after \
    proc_exec-c:vfork-close-range proc_fd-c:rights-after; do
    port=$((port + 1))
    ${scene%:*} $port ${scene#*:} > /tmp/plain 2>&1
    $over ${scene%:*} $port ${scene#*:} > /tmp/run 2>&1
    echo "$scene: $?"
    cmp /tmp/plain /tmp/run || cat /tmp/run
done

echo "== killed"
endless="threads send 4000000000 4000000000 3 1"
# As in the first turn: what a kill does is looked at on a connection that has left TCP.
for at in 7005 7015 7025 7035 7045; do
    $over transfer-c server $at $endless > /tmp/served 2>&1 & server=$!
    listens $at
    $over transfer-c client $at $endless > /tmp/said 2>&1 & client=$!
    look 3 $at > /tmp/looked
    grep -q '^upgraded: ' /tmp/looked && break
    echo "stayed on TCP:"; cat /tmp/looked
    kill $server $client; wait $server $client 2> /dev/null
done
cat /tmp/looked
numbers transfer-c
for program in $(pidof transfer-c); do grep -qa server /proc/$program/cmdline && kill -9 $program; done
wait $client; echo "client: $?"
cat /tmp/said

# Of a user who may lock little memory: smaller buffers.
echo "== poor"
bytes="lockstep write 3000000 3000000 3 1"
poor() { (ulimit -l $1; exec /bin/setpriv --reuid 1000 --regid 1000 --clear-groups $over transfer-c $2 $3 $bytes); }
chmod 777 /tmp
for limit in 1024 100; do
    port=$((port + 1))
    poor $limit server $port > /tmp/served 2>&1 & server=$!
    listens $port
    poor $limit client $port > /tmp/said 2>&1 & client=$!
    look 1 $port
    wait $client; echo "client: $?"
    wait $server; echo "server: $?"
    cat /tmp/said
done

# Without a port that is up there is the provider in software.
echo "== down"
/bin/ip link set v0 down
shortwire devices | grep verbs
bytes="threads send 20000000 20000000 3 1"
meet "transfer-c server 7006 $bytes" "transfer-c client 7006 $bytes" 7006 1
