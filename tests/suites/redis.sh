# Redis's Tcl suite against the servers of this machine: what has to do with connections, clients and replication. The
# units about data types and files take an hour more. The longest comes first.
UNITS="integration/replication integration/replication-psync unit/auth unit/protocol unit/info unit/other unit/multi
	unit/quit unit/dump integration/block-repl integration/replication-2 integration/replication-3
	integration/replication-4 integration/replication-buffer integration/shutdown integration/rdb integration/psync2
	integration/psync2-reg integration/psync2-pingoff integration/psync2-master-restart integration/failover
	integration/redis-cli integration/redis-benchmark unit/pubsub unit/pubsubshard unit/introspection
	unit/introspection-2 unit/limits unit/obuf-limits unit/wait unit/pause unit/querybuf unit/pendingquerybuf
	unit/tracking unit/shutdown unit/networking unit/cluster unit/client-eviction unit/violations unit/replybufsize
	unit/cluster-scripting unit/cluster/misc unit/cluster/links"

fetch() {
	needs redis-server redis-cli redis-benchmark tclsh
	source_of redis
	local tool
	for tool in server cli benchmark check-aof check-rdb; do
		ln -sf "$(command -v redis-$tool)" "$SRC/redis/src/redis-$tool"
	done
}

run() {
	cd "$SRC/redis" || return
	# shellcheck disable=SC2046
	under timeout -k 5 1200 ./runtest --clients 4 --skiptest "diskless loading short read" $(printf -- '--single %s ' $UNITS) </dev/null | tee /dev/stderr |
		sed -E 's/\x1b\[[0-9;]*m//g' | sed -nE 's/^\[ok\]: (.*) \([0-9]+ ms\)$/ok \1/p; s/^\[err\]: (.*) in tests\/.*/not ok \1/p
			s/^\[exception\]: .*/not ok a test that ended the suite/p; s/^\[TIMEOUT\].*/not ok a test that did not end/p; s/^\[skip\]: (.*)/skip \1/p'
	ls tests/tmp >/dev/null 2>&1 && find tests/tmp -mindepth 1 -maxdepth 1 -name '*.*.*' -exec rm -rf {} +
}
