# HAProxy's regression tests by Varnish's test program, against the haproxy of this machine.
fetch() {
	needs haproxy
	source_of haproxy
	deb varnish libvarnishapi3 libjemalloc2
}

# One file. Varnish's program is older than the one that HAProxy asks for: a few files fail with it in every mode, and over
# prometheus.vtc it aborts and leaves a haproxy behind.
one() {
	local status=0
	${UNDER:-} timeout -k 5 90 "$ROOT/usr/bin/varnishtest" -t 60 -D testdir="$(dirname "$1")" "$1" </dev/null >"$TMPDIR/${1//\//_}.out" 2>&1 || status=$?
	case $status in
	0) echo "ok $1" ;;
	77) echo "skip $1" ;;
	*) echo "not ok $1" && cat "$TMPDIR/${1//\//_}.out" >&2 ;;
	esac
}

run() {
	local lib=$ROOT/usr/lib/x86_64-linux-gnu
	export -f one
	export ROOT UNDER TMPDIR=$PWD HAPROXY_PROGRAM LD_LIBRARY_PATH=$lib:$lib/varnish
	HAPROXY_PROGRAM=$(command -v haproxy)
	cd "$SRC/haproxy" && find reg-tests -name '*.vtc' ! -name prometheus.vtc | sort | alone xargs -P 4 -I FILE bash -c 'one FILE'
}
