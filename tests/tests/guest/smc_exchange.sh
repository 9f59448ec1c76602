# In the guest: exchanges between ends over AF_SMC of the kernel and ends under Shortwire.

export SHORTWIRE_AFTER=4
/applets/ip link set lo up
# Long enough for the upgrade also where either end runs for hundreds of calls before the other has its turn.
dd if=/dev/urandom of=/tmp/server-sends bs=4096 count=2048 2> /dev/null
dd if=/dev/urandom of=/tmp/client-sends bs=4096 count=2048 2> /dev/null
sum() { sha256sum < $1 | cut -d ' ' -f 1; }
port=5000
# NAME, then for server and client: smc or tcp, and what it is started by.
exchange() {
    name=$1 port=$((port + 1))
    rm -f /tmp/go /tmp/server-got /tmp/client-got
    echo "== $name"
    $3 smc_peer server $2 $port /tmp/server-sends /tmp/server-got /tmp/go > /tmp/server 2>&1 & server=$!
    $5 smc_peer client $4 $port /tmp/client-sends /tmp/client-got /tmp/go > /tmp/client 2>&1 & client=$!
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
run="shortwire run -q --"
# What smc_run does with its library, which needs a shell of its own.
cat > /tmp/smc_run <<'end'
#!/applets/sh
export LD_PRELOAD=$LD_PRELOAD:/tmp/libsmc-preload.so
exec "$@"
end
chmod +x /tmp/smc_run
