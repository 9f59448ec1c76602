# Redis's Tcl suite against the servers of this machine: what has to do with connections, clients and replication. The
# units about data types and files take an hour more. Parts that run side by side: on a slow machine the suite itself runs
# one unit after the other.
PARTS=(
	"integration/replication integration/replication-buffer integration/block-repl unit/wait unit/pause"
	"integration/replication-psync integration/psync2 integration/psync2-reg integration/psync2-pingoff
		integration/psync2-master-restart integration/failover"
	"integration/replication-2 integration/replication-3 integration/replication-4 integration/shutdown integration/redis-cli
		integration/redis-benchmark unit/auth unit/protocol unit/info unit/multi unit/quit unit/dump unit/pubsub
		unit/pubsubshard unit/introspection unit/introspection-2 unit/limits unit/obuf-limits unit/querybuf
		unit/pendingquerybuf unit/tracking unit/shutdown unit/networking unit/cluster unit/client-eviction
		unit/violations unit/replybufsize unit/cluster-scripting unit/cluster/misc unit/cluster/links"
)
# They take minutes each.
LONG=("diskless loading short read" "Master stream is correctly processed while the replica has a script in -BUSY state")

fetch() {
	needs redis-server redis-cli redis-benchmark tclsh
	source_of redis
	local tool
	for tool in server cli benchmark check-aof check-rdb; do
		ln -sf "$(command -v redis-$tool)" "$SRC/redis/src/redis-$tool"
	done
}

# The units named, in a copy of the tests, as each run clears away what others left. Random numbers in names go.
part() {
	rm -rf "$1" && mkdir "$1" && cd "$1" && ln -s "$SRC/redis"/* . && rm tests && mkdir -p tests/tmp || return
	cp -r "$SRC/redis"/tests/{assets,helpers,integration,support,unit,modules,*.tcl} tests
	# shellcheck disable=SC2046
	under timeout -k 5 1200 ./runtest --clients 2 $(printf -- '--single %s ' $2) "${@:3}" </dev/null | tee -a /dev/stderr |
		sed -uE 's/\x1b\[[0-9;]*m//g; s/(#|x = |CYCLE )[0-9]+/\1N/g' | sed -unE 's/^\[ok\]: (.*) \([0-9]+ ms\)$/ok \1/p; s/^\[err\]: (.*) in tests\/.*/not ok \1/p
			s/^\[exception\]: .*/not ok a test that ended the suite/p; s/^\[TIMEOUT\].*/not ok a test that did not end/p; s/^\[skip\]: (.*)/skip \1/p'
}

run() {
	local name number words=()
	for name in "${LONG[@]}"; do words+=(--skiptest "$name"); done
	for number in "${!PARTS[@]}"; do part "$PWD/$number" "${PARTS[number]}" "${words[@]}" & done
	wait
}
