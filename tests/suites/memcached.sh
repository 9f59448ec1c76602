# memcached's tests, against the server of this machine.
fetch() {
	needs memcached prove cc
	source_of memcached
	cd "$SRC/memcached" || return
	cc -w -o timedrun timedrun.c || skip "a helper of memcached's tests cannot be built"
	# Debian's memcached cannot give up privileges, so it lacks an option of the tests.
	cat >memcached-debug <<-'SCRIPT'
		#!/bin/bash
		for word; do
			shift
			case $word in
			-o) option=1 ;;
			relaxed_privileges) option= ;;
			*) set -- "$@" ${option:+-o} "$word" && option= ;;
			esac
		done
		exec memcached "$@"
	SCRIPT
	chmod +x memcached-debug
}

run() {
	cd "$SRC/memcached" || return
	under timeout -k 5 900 prove -j 2 t/*.t </dev/null 2>&1 | tee -a /dev/stderr |
		sed -nE 's/^(t\/[^ ]*\.t) \.+ ok$/ok \1/p; s/^(t\/[^ ]*\.t) \.+ (skipped.*)$/skip \1/p; s/^(t\/[^ ]*\.t) \.+ *$/not ok \1/p; s/^(t\/[^ ]*\.t) +\(Wstat.*/not ok \1/p' | sort -u
}
