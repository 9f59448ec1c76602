# Varnish's tests by its test program. A worker adds a backend's connection, after every request, to an epoll set in which
# another thread sleeps.
fetch() {
	needs x86_64-linux-gnu-gcc
	deb varnish libvarnishapi3 libjemalloc2
	if [ ! -e "$SRC/varnish" ]; then
		# Where Debian has no longer the source of what it has built, upstream has it.
		if ! (source_of varnish); then
			needs git
			local version
			version=$(dpkg-deb -f "$SUITES/debs"/varnish_*.deb Version) && rm -rf "$SRC/.varnish" "$SRC/varnish.new"
			git clone -q --depth 1 -b "varnish-${version%%-*}" https://github.com/varnishcache/varnish-cache "$SRC/varnish.new" >&2 ||
				skip "Varnish's tests cannot be fetched"
			mv "$SRC/varnish.new" "$SRC/varnish"
		fi
	fi
	mkdir -p "$SUITES/varnish"
	# Its modules lie elsewhere than it thinks.
	cat >"$SUITES/varnish/varnishd" <<-SCRIPT
		#!/bin/bash
		case "\$1" in -V | -x) exec $ROOT/usr/sbin/varnishd "\$@" ;; esac
		exec $ROOT/usr/sbin/varnishd -p vmod_path=$ROOT/usr/lib/x86_64-linux-gnu/varnish/vmods "\$@"
	SCRIPT
	# Most of the time goes into compiling its configurations.
	cat >"$SUITES/varnish/x86_64-linux-gnu-gcc" <<-'SCRIPT'
		#!/bin/bash
		unset LD_PRELOAD LD_LIBRARY_PATH
		exec /usr/bin/x86_64-linux-gnu-gcc "$@" -O0
	SCRIPT
	chmod +x "$SUITES/varnish"/*
}

# Backends, the cache, ESI and compression: with all the others it would take a quarter of an hour.
run() {
	local lib=$ROOT/usr/lib/x86_64-linux-gnu
	export -f vtc
	export ROOT UNDER TMPDIR=$PWD LD_LIBRARY_PATH=$lib:$lib/varnish PATH=$SUITES/varnish:$ROOT/usr/bin:$PATH
	cd "$SRC/varnish/bin/varnishtest/tests" || return
	printf '%s\n' [bceg]*.vtc | alone xargs -P 4 -I FILE bash -c 'vtc FILE'
}
