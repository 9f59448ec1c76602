# In both guests, which share a bar and a network card's cable. $role is server or client.

failed() { echo "FAILED: $*"; cat /tmp/broker /tmp/log-* 2>/dev/null | tail -40; dmesg | tail -5; exit 1; }
# Runs a command until it succeeds, for a while.
retry() {
    tries=0
    until "$@" > /tmp/log-retry 2>&1; do
        tries=$((tries + 1)); [ $tries -lt 3000 ] || failed "$*"
        sleep 0.2
    done
}
listens() { cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ":$(printf %04X $1) [0-9A-F]*:0000 0A "; }
# Leaves what there is to be seen in /tmp/groups and /tmp/ss; whether a connection has moved to the bar.
look() {
    shortwire linkgroups -d | grep -i ivshmem > /tmp/groups
    shortwire ss -W > /tmp/ss
    [ -s /tmp/groups ] && grep ' SMCD' /tmp/ss | grep -qv ' TCP'
}
device=$(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device))
echo 1 > $device/enable
ip link set lo up
[ $role = server ] && own=10.9.0.1 || own=10.9.0.2
card=$(ls /sys/class/net | grep -v lo | head -n 1)
ip addr add $own/24 dev $card; ip link set $card up
# What it does to a bar that nobody has prepared.
shortwire devices | grep ivshmem | sed 's/^/before: /'
shortwire broker > /tmp/broker 2>&1 &
broker=$!
retry grep -q listening /tmp/broker
shortwire devices | grep ivshmem | sed 's/^/after: /'

if [ $role = server ]; then
    mkdir -p /srv/files
    head -c $bytes /dev/urandom > /srv/files/big
    sha256sum < /srv/files/big > /srv/files/sum
    shortwire run --spin $spin -- redis-server --save "" --protected-mode no > /tmp/log-redis 2>&1 &
    shortwire run --spin $spin -- iperf3 -s > /tmp/log-iperf3 2>&1 &
    retry listens 6379
    retry listens 5201
    # Last: the client begins as soon as this one answers.
    shortwire run --spin $spin -- nginx -p /srv -c /srv/nginx.conf > /tmp/log-nginx 2>&1 &
    echo "== serving"
    # Until the client has done with it.
    nc -l -p 9999 > /dev/null
    kill -TERM $broker
    wait $broker || failed "the broker ended with $?"
    exit 0
fi

retry curl -sS --fail -o /tmp/sum http://10.9.0.1/sum
for how in plain run; do
    with=""; [ $how = run ] && with="shortwire run --spin $spin --"
    $with curl -sS --fail -o /tmp/big http://10.9.0.1/big || failed curl
    sha256sum < /tmp/big | cmp - /tmp/sum || failed "the content differs"
    rm /tmp/big
    # One that took long to begin may be over before its ends have found each other: the next one lasts longer.
    for seconds in 8 16 32 64; do
        $with iperf3 -c 10.9.0.1 -t $seconds -f k > /tmp/log-$how 2>&1 &
        iperf3=$! moved=1
        : > /tmp/groups; : > /tmp/ss
        sleep 3
        until [ ! -d /proc/$iperf3 ]; do
            look && moved=0
            [ $how = run ] && [ $moved = 1 ] || break
            sleep 1
        done
        # Its server may not have done with the one before.
        wait $iperf3 || grep -q busy /tmp/log-$how || failed iperf3
        [ $how = run ] && [ $moved = 1 ] || break
    done
    sed "s/^/$how group: /" /tmp/groups
    sed "s/^/$how ss: /" /tmp/ss
    echo "$how bandwidth $(awk '/receiver/ { print $7 }' /tmp/log-$how) Kbit/s"
    $with redis-benchmark -h 10.9.0.1 -c 1 -n 3000 -t get --csv > /tmp/log-redis 2>&1 || failed redis-benchmark
    echo "$how latency $(tail -n 1 /tmp/log-redis | tr -d '"' | cut -d , -f 3) ms"
done
retry sh -c 'echo done | nc 10.9.0.1 9999'
kill -TERM $broker
wait $broker || failed "the broker ended with $?"
