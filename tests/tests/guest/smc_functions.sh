# ADDRESS, smc or tcp, and port, in the far one of two guests: the end that is called, behind a shell of its own.
serve() {
    rm -f /tmp/go /tmp/ended
    head -c 1000000 /dev/urandom > /tmp/sends
    (timeout 400 shortwire run -q -- smc_peer server $2 $3 /tmp/sends /tmp/got /tmp/go $1 > /tmp/server 2>&1; echo $? > /tmp/ended) > /dev/null 2>&1 &
}
