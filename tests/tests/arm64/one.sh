# In the guest: exchanges of two programs under shortwire run, each with both ends in shared memory.

ip link set lo up
export SHORTWIRE_AFTER=4
for end in server client; do dd if=/dev/urandom of=/tmp/$end-sends bs=4096 count=512 2> /dev/null; done
sum() { sha256sum < $1 | cut -d ' ' -f 1; }
port=5000
# NAME, then what is said to shortwire run.
exchange() {
    name=$1 port=$((port + 1))
    shift
    rm -f /tmp/go /tmp/server-got /tmp/client-got
    echo "== $name"
    for end in server client; do
        shortwire run -q "$@" -- smc_peer $end tcp $port /tmp/$end-sends /tmp/$end-got /tmp/go > /tmp/$end 2>&1 &
        eval $end=$!
    done
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
echo "$(uname -m) $(grep -m 1 KernelPageSize /proc/self/smaps)"
exchange loopback
exchange copied --copy
exchange ism --prefer ism
