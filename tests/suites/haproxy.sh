# HAProxy's regression tests by Varnish's test program, against the haproxy of this machine.
fetch() {
	needs haproxy
	source_of haproxy
	deb varnish libvarnishapi3 libjemalloc2
}

# Varnish's program is older than the one that HAProxy asks for: a few files fail with it in every mode, and over prometheus.vtc
# it aborts and leaves a haproxy behind.
run() {
	local lib=$ROOT/usr/lib/x86_64-linux-gnu
	export -f vtc
	export ROOT UNDER TMPDIR=$PWD HAPROXY_PROGRAM LD_LIBRARY_PATH=$lib:$lib/varnish
	HAPROXY_PROGRAM=$(command -v haproxy)
	cd "$SRC/haproxy" && find reg-tests -name '*.vtc' ! -name prometheus.vtc | sort | alone xargs -P 4 -I FILE bash -c 'vtc FILE -D testdir=$(dirname FILE)'
}
