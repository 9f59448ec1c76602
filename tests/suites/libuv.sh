# libuv's own tests. They refuse to run as root.
fetch() {
	needs cc ar setpriv
	source_of libuv1
	[ -x "$SRC/libuv1/uv_run_tests" ] && return
	local flags="-w -O1 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I../include -I../src -I../test"
	(
		mkdir -p "$SRC/libuv1/build" && cd "$SRC/libuv1/build" || exit
		for file in async core dl epoll fs getaddrinfo getnameinfo linux-core linux-inotify linux-syscalls loop \
			loop-watcher pipe poll process procfs-exepath proctitle random-devurandom random-getrandom \
			random-sysctl-linux signal stream tcp thread tty udp; do ls "../src/unix/$file.c"; done |
			cat - <(ls ../src/*.c ../test/test-*.c ../test/{runner,runner-unix,run-tests,echo-server,blackhole-server}.c) |
			xargs -P 2 -n 8 cc $flags -c &&
			ar rcs libuv.a $(ls ./*.o | grep -v -E '^./(test-|runner|run-tests|echo-server|blackhole)') &&
			cc -o ../uv_run_tests test-*.o runner*.o run-tests.o echo-server.o blackhole-server.o libuv.a -lpthread -ldl -lrt -lutil
	) >&2 || skip "libuv's tests cannot be built"
	chmod -R a+rwX "$SRC/libuv1"
}

run() {
	cd "$SRC/libuv1" || return
	local nobody=
	[ "$(id -u)" = 0 ] && nobody="setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp"
	# shellcheck disable=SC2086
	UV_TEST_TIMEOUT_MULTIPLIER=4 alone $nobody timeout -k 5 900 ${UNDER:-} ./uv_run_tests | tee -a /dev/stderr | tap
}
