# In the near one of two guests with soft-RoCE on one network: exchanges with the far one, whose end is the server.

run="timeout 400 shortwire run -q --"
sum() { sha256sum < $1 | cut -d ' ' -f 1; }
# NAME, smc or tcp, and the port.
between() {
    echo "== $1"
    rm -f /tmp/go
    head -c 1000000 /dev/urandom > /tmp/sends
    far "serve $peer $2 $3"
    $run smc_peer client $2 $3 /tmp/sends /tmp/got /tmp/go $peer > /tmp/client 2>&1 & client=$!
    tries=0
    until grep -q exchanged /tmp/client && far cat /tmp/server | grep -q exchanged; do
        tries=$((tries + 1)); [ $tries -lt 300 ] && [ -d /proc/$client ] || break
        sleep 0.3
    done
    shortwire ss -W | grep :$3 | sed 's/^/near ss: /'
    far "shortwire ss -W | grep :$3" | sed 's/^/far ss: /'
    touch /tmp/go; far touch /tmp/go
    wait $client; echo "client: $?"
    far 'until [ -s /tmp/ended ]; do sleep 0.1; done; echo "server: $(cat /tmp/ended)"; sed "s/^/server said: /" /tmp/server'
    sed 's/^/client said: /' /tmp/client
    [ $(sum /tmp/sends) = "$(far 'sha256sum < /tmp/got' | cut -d ' ' -f 1)" ] && echo "to server: intact"
    [ "$(far 'sha256sum < /tmp/sends' | cut -d ' ' -f 1)" = $(sum /tmp/got) ] && echo "to client: intact"
}
between kernel-smc smc 5001
between tcp tcp 5002
dmesg | grep -i "smc\|rxe" | tail -n 20 | sed 's/^/dmesg: /'
