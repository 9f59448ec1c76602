# libevent's regress, by every back end at once: it mostly waits.
fetch() {
	needs cc make
	source_of libevent
	[ -x "$SRC/libevent/test/regress" ] && return
	(cd "$SRC/libevent" && ./configure -q --disable-shared --disable-samples --disable-doxygen-html CFLAGS="-O1 -w" &&
		touch aclocal.m4 && sleep 1 && touch Makefile.in configure config.h.in evconfig-private.h.in && sleep 1 &&
		touch config.status && sleep 1 && touch Makefile config.h evconfig-private.h stamp-h1 &&
		make -s include/event2/event-config.h && make -s -j2 test/regress) >&2 || skip "libevent's tests cannot be built"
}

run() {
	local backend
	cd "$SRC/libevent" || return
	for backend in EPOLL POLL SELECT; do
		(
			for other in EPOLL POLL SELECT; do [ $other = $backend ] || export EVENT_NO$other=1; done
			under timeout -k 5 400 test/regress 2>&1
		) | tee -a /dev/stderr | sed -unE "s|^([a-z_]+/[^ :]*): (\[forking\] )?OK\$|ok \1 $backend|p; s|^([a-z_]+/[^ :]*): .*(SKIPPED\|DISABLED).*|skip \1 $backend|p
			s|.*\b([a-z_]+/[a-z0-9_]+): (\[forking\] )?\$|begin \1 $backend|p" &
	done
	wait
}
