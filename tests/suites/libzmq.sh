# The tests of ZeroMQ's library, built from source.
fetch() {
	needs cmake make c++
	source_of zeromq3
	mkdir -p "$SRC/zeromq3/build" && cd "$SRC/zeromq3/build" || return
	[ -e built ] && return
	(cmake .. -DCMAKE_CXX_FLAGS="-O0 -w" -DBUILD_TESTS=ON -DBUILD_STATIC=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF && make -s -j2) >&2 ||
		skip "libzmq cannot be built"
	touch built
}

run() {
	cd "$SRC/zeromq3/build" || return
	under ctest -j 4 --timeout 120 </dev/null 2>&1 | tee -a /dev/stderr |
		sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+ +Passed.*/ok \1/p
			s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+\*\*\*Skipped.*/skip \1/p
			s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+\*\*\*(Failed|Timeout|Exception).*/not ok \1/p'
}
