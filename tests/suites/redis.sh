# Redis's Tcl suite against the servers of this machine.
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
	under timeout -k 5 1500 ./runtest --clients 2 --skipunit unit/oom-score-adj --skipunit unit/memefficiency \
		--skipunit integration/logging </dev/null | tee /dev/stderr |
		sed -E 's/\x1b\[[0-9;]*m//g' | sed -nE 's/^\[ok\]: (.*) \([0-9]+ ms\)$/ok \1/p; s/^\[err\]: (.*) in tests\/.*/not ok \1/p
			s/^\[exception\]: .*/not ok a test that ended the suite/p; s/^\[TIMEOUT\].*/not ok a test that did not end/p; s/^\[skip\]: (.*)/skip \1/p'
	ls tests/tmp >/dev/null 2>&1 && find tests/tmp -mindepth 1 -maxdepth 1 -name '*.*.*' -exec rm -rf {} +
}
