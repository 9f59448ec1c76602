# In the guest: programs that load no library, under shortwire run --raw auto.

ip link set lo up
for name in echo true sh; do [ -e /bin/$name ] || ln -s /applets/$name /bin/$name; done
export SHORTWIRE_AFTER=4 SHORTWIRE_RAW=auto
uname -m
echo "life: $(shortwire run -- life 2>&1)"
echo "musl life: $(shortwire run -- musl_life 2>&1)"
for end in server client; do dd if=/dev/urandom of=/tmp/$end-sends bs=4096 count=256 2> /dev/null; done
sum() { sha256sum < $1 | cut -d ' ' -f 1; }
port=5000
# NAME, then the programs at both ends.
exchange() {
    name=$1 port=$((port + 1)) server_is=$2 client_is=$3
    rm -f /tmp/go /tmp/server-got /tmp/client-got
    echo "== $name"
    shortwire run -- $server_is server tcp $port /tmp/server-sends /tmp/server-got /tmp/go > /tmp/server 2>&1 &
    server=$!
    shortwire run -- $client_is client tcp $port /tmp/client-sends /tmp/client-got /tmp/go > /tmp/client 2>&1 &
    client=$!
    tries=0
    until grep -q exchanged /tmp/server && grep -q exchanged /tmp/client; do
        tries=$((tries + 1)); [ $tries -lt 900 ] && [ -d /proc/$client ] && [ -d /proc/$server ] || break
        sleep 0.1
    done
    shortwire ss -W | grep 127.0.0.1:$port | sed 's/^/ss: /'
    touch /tmp/go
    wait $server; echo "server: $?"
    wait $client; echo "client: $?"
    sed 's/^/server said: /' /tmp/server; sed 's/^/client said: /' /tmp/client
    [ $(sum /tmp/server-sends) = $(sum /tmp/client-got) ] && echo "to client: intact"
    [ $(sum /tmp/client-sends) = $(sum /tmp/server-got) ] && echo "to server: intact"
}
exchange both still_peer still_peer
exchange server still_peer smc_peer
exchange client smc_peer still_peer
exchange musl musl_peer still_peer
# Calls of a library that is mapped while the program runs, in each way.
echo "== later"
shortwire run -- many server 7000 > /tmp/server 2>&1 &
server=$!
tries=0
until grep -q ":1B58 " /proc/net/tcp; do
    tries=$((tries + 1)); [ $tries -lt 900 ] && [ -d /proc/$server ] || break
    sleep 0.1
done
for how in dlopen mapped protected again; do
    # One that ended before it was seen goes on for longer.
    most=0 rounds=3000
    while [ $most -lt 2 ] && [ $rounds -lt 1000000 ]; do
        shortwire run -- later 7000 /lib/later_library.so $how $rounds > /tmp/client 2>&1 &
        client=$!
        while [ -d /proc/$client ]; do
            now=$(shortwire ss -W | grep 127.0.0.1:7000 | grep -c ' SMCD')
            [ $now -gt $most ] && most=$now
        done
        wait $client || break
        rounds=$((rounds * 4))
    done
    echo "later $how said: $(cat /tmp/client)"
    echo "later $how SMCD: $most"
done
kill $server
echo "== herd"
shortwire run -- herd server 6000 > /tmp/server 2>&1 &
server=$!
tries=0
until grep -q ":1770 " /proc/net/tcp; do
    tries=$((tries + 1)); [ $tries -lt 900 ] && [ -d /proc/$server ] || break
    sleep 0.1
done
# It keeps its connections until its input ends.
(until [ -e /tmp/looked ]; do sleep 0.1; done) | shortwire run -- herd client 6000 10 150 > /tmp/client 2>&1 &
client=$!
# They are looked at until enough are seen at once.
tries=0
while [ -d /proc/$client ] && [ $tries -lt 600 ]; do
    tries=$((tries + 1))
    shortwire ss -W | grep 127.0.0.1:6000 > /tmp/now
    [ ! -s /tmp/seen ] || [ $(grep -c ' SMCD' /tmp/now) -gt $(grep -c ' SMCD' /tmp/seen) ] && cp /tmp/now /tmp/seen
    [ $(grep -c ' SMCD' /tmp/seen) -ge 10 ] && break
done
touch /tmp/looked
wait $client; echo "client: $?"
sed 's/^/ss: /' /tmp/seen
sed 's/^/herd said: /' /tmp/client
sed 's/^/server said: /' /tmp/server
[ -d /proc/$server ] && echo "the server runs" && kill $server
