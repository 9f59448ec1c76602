# In both guests. An end is "ours" or "theirs": over which library its program goes.
ours="shortwire run --rsocket --prefer verbs --"
spread=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so
limit=${limit:-300}

library() { [ $1 = theirs ] || echo "$ours"; }

# PORT COMMAND, at the far end: a server. Listeners of RDMA are in no table of sockets, but the kernel can list them.
serve() {
    listener=$1; shift
    rm -f /tmp/ended
    (timeout $limit "$@" > /tmp/served 2>&1; echo $? > /tmp/ended) > /dev/null 2>&1 &
    tries=0
    until rdma resource show cm_id | grep -q "state LISTEN .*:$listener "; do
        tries=$((tries + 1)); [ $tries -lt 600 ] && [ ! -s /tmp/ended ] || { echo "it does not listen:"; cat /tmp/served; return; }
        sleep 0.1
    done
}

# How the server ended, and what it printed. One that goes on is ended.
served() {
    tries=0
    until [ -s /tmp/ended ]; do
        tries=$((tries + 1)); [ $tries -lt ${1:-600} ] || { echo "server hangs"; end TERM $2; return; }
        sleep 0.1
    done
    echo "server $(cat /tmp/ended)"
    cat /tmp/served
}

# SIGNAL PROGRAM
end() { for process in $(pidof $2); do kill -$1 $process; done; }

# Prints a line of the table, and what both ends printed where that is not what it should be.
line() {
    if [ $1 = 0 ]; then echo "ok: $2"; else echo "WRONG: $2"; echo "    client ${status:-}"; sed 's/^/    client: /' /tmp/said; sed 's/^/    server: /' /tmp/far; fi
}

# CLIENT SERVER PROGRAM OPTIONS, in the near guest: both ends check what comes, print a row each, and end well.
turn() {
    client=$1 server=$2 program=$3; shift 3
    port=$((${port:-7000} + 1))
    far "serve $port $(library $server) $program -b $peer -p $port $*" > /tmp/far
    timeout $limit $(library $client) $program -s $peer -p $port "$@" > /tmp/said 2>&1; status=$?
    far served 600 $program >> /tmp/far
    # rpoll of librdmacm says POLLHUP, which is 16, as soon as the server has ended, though there are bytes to be read, and
    # rstream takes that for an error: now and then, also where the server is librdmacm.
    case "$client $status $*" in "theirs 16 "*"-T a"*)
        if grep -q "^server 0" /tmp/far && grep -q ^custom /tmp/far && ! grep -q "verification failed" /tmp/said /tmp/far; then
            echo "as librdmacm: $client to $server: $program $*, the client ends with POLLHUP before it has read all"; return
        fi ;;
    esac
    [ $status = 0 ] && grep -q "^server 0" /tmp/far && grep -q ^custom /tmp/said && grep -q ^custom /tmp/far &&
        ! grep -q "verification failed" /tmp/said /tmp/far
    line $? "$client to $server: $program $*"
}

# CLIENT SERVER OPTIONS: of a program for TCP, whose sockets librdmacm's librspreload makes rsockets. The server serves
# clients in children, and does not end.
forked() {
    client=$1 server=$2; shift 2
    port=$((${port:-7000} + 1))
    far "serve $port env RDMAV_FORK_SAFE=1 LD_PRELOAD=$spread $(library $server) rstream -b $peer -p $port -T f $*" > /tmp/far
    RDMAV_FORK_SAFE=1 LD_PRELOAD=$spread timeout $limit $(library $client) rstream -s $peer -p $port -T f "$@" > /tmp/said 2>&1; status=$?
    far 'end TERM rstream; served' >> /tmp/far
    [ $status = 0 ] && grep -q ^custom /tmp/said && grep -q ^custom /tmp/far && ! grep -q "verification failed" /tmp/said /tmp/far
    line $? "$client to $server: rstream -T f $*, by librspreload"
}

# CLIENT SERVER BYTES: a file arrives as it was.
copy() {
    port=$((${port:-7000} + 1))
    head -c $3 /dev/urandom > /tmp/in
    far "rm -f /tmp/out; serve $port $(library $2) rcopy -p $port" > /tmp/far
    timeout $limit $(library $1) rcopy /tmp/in $peer:/tmp/out -p $port > /tmp/said 2>&1; status=$?
    there=$(far 'sha256sum < /tmp/out'; far 'end TERM rcopy; served' >> /tmp/far)
    [ $status = 0 ] && [ "$there" = "$(sha256sum < /tmp/in)" ]
    line $? "$1 to $2: rcopy, a file of $3 bytes"
}


# CLIENT SERVER: datagrams. The server serves for ever.
datagrams() {
    port=$((${port:-7000} + 1))
    far "(timeout $limit $(library $2) udpong -b $peer -p $port -S 1000 -C 50 > /tmp/served 2>&1) > /dev/null 2>&1 & sleep 2"
    timeout 30 $(library $1) udpong -s $peer -p $port -S 1000 -C 50 > /tmp/said 2>&1; status=$?
    far 'end TERM udpong; cat /tmp/served' > /tmp/far
    [ $status = 0 ] && grep -q ^custom /tmp/said
}

# CLIENT SERVER WHO: one end is killed in the middle; the other ends by itself, and not well.
killed() {
    port=$((${port:-7000} + 1))
    endless="-S 65536 -I 1000000 -C 100 -T b"
    far "serve $port $(library $2) rstream -b $peer -p $port $endless" > /tmp/far
    timeout $limit $(library $1) rstream -s $peer -p $port $endless > /tmp/said 2>&1 & client=$!
    # It begins when the queue pairs of both are connected.
    tries=0
    until rdma resource show qp | grep -q "type RC .*state RTS" && far rdma resource show qp | grep -q "type RC .*state RTS"; do
        tries=$((tries + 1)); [ $tries -lt 2000 ] || break
        sleep 0.1
    done
    sleep 3
    # Both are there, or it was not in the middle.
    there=$(for end in $(pidof rstream) $(far pidof rstream); do echo $end; done | wc -l)
    if [ $3 = server ]; then
        far end KILL rstream
        wait $client; status=$?
        far served >> /tmp/far
        told=$(grep -v ^name /tmp/said)
    else
        end KILL rstream
        wait $client 2> /dev/null
        far served $((limit * 10)) rstream >> /tmp/far
        status=$(sed -n 's/^server //p' /tmp/far)
        told=$(grep -v "^name\|^server" /tmp/far)
    fi
    # 124 and 143: the end that was left had to be ended.
    case $status in 0|124|143|hangs) false ;; *) [ $there = 2 ] ;; esac
    line $? "$1 to $2: rstream, $3 killed, the other ends with $status${told:+: $told}"
}

# What librdmacm does with itself when an end is killed, for the table: its other end may stay where it is.
stays() {
    limit=20
    killed "$@" > /tmp/kept 2>&1
    grep -q ^ok /tmp/kept && cat /tmp/kept || echo "as librdmacm: $1 to $2: rstream, $3 killed, the other was still there after $limit s"
    limit=300
}
