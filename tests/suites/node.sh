# Node's tests of net, http, https, tls and cluster, and some of http2, by the node of their own version.
GROUPS_OF_TESTS="net-* http-server* http-client* http-agent* http-keep* http-out* http-pipe* http-up* https-* http2-server-*
	tls-* cluster-* pipe-* stdio-* tcp-* socket-*"

fetch() {
	needs npm
	source_of nodejs
	version=$(sed -nE 's/^#define NODE_(MAJOR|MINOR|PATCH)_VERSION ([0-9]+)/\2/p' "$SRC/nodejs/src/node_version.h" | paste -sd.)
	[ -x "$SUITES/npm/node_modules/node/bin/node" ] && return
	mkdir -p "$SUITES/npm"
	(cd "$SUITES/npm" && npm install --silent --no-audit --no-fund "node@$version" >&2) || skip "cannot fetch node $version"
}

# One file, with the flags that its first lines name.
one() {
	name=$(basename "$1" .js)
	flags=$(sed -n 's,^// Flags: ,,p' "$1")
	# shellcheck disable=SC2086
	if ${UNDER:-} timeout -k 5 60 "$SUITES/npm/node_modules/node/bin/node" $flags "$1" </dev/null >"$SUITES/tmp/node/$name.out" 2>&1; then
		echo "ok $name"
	else
		echo "not ok $name"
		{ echo "== $name: $?"; cat "$SUITES/tmp/node/$name.out"; } >&2
	fi
	rm -f "$SUITES/tmp/node/$name.out"
}

run() {
	export -f one
	export SUITES NODE_TEST_DIR=$SUITES/tmp/node
	for group in $GROUPS_OF_TESTS; do ls "$SRC/nodejs/test/parallel/test-"$group.js; done 2>/dev/null |
		alone xargs -P 4 --process-slot-var=TEST_THREAD_ID -I FILE bash -c 'one FILE'
}
