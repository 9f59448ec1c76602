# PostgreSQL's regression and isolation tests over TCP, against the server of this machine: a server that forks for each of
# up to twenty clients at once, and clients of libpq.
VERSION=$(ls /usr/lib/postgresql 2>/dev/null | sort -V | tail -n 1)
PGLIB=/usr/lib/postgresql/$VERSION/lib
TESTERS=$PGLIB/pgxs/src/test

fetch() {
	needs cc psql setpriv
	[ -x "$TESTERS/regress/pg_regress" ] || skip "PostgreSQL has no pg_regress"
	source_of "postgresql-$VERSION"
	deb "postgresql-server-dev-$VERSION" libpq-dev
	local here=$SRC/postgresql-$VERSION/src/test/regress headers=$ROOT/usr/include/postgresql
	cc -w -O2 -shared -fPIC -I"$headers/$VERSION/server" -I"$headers" -I"$headers/internal" -o "$here/regress.so" "$here/regress.c" ||
		skip "the functions of PostgreSQL's tests cannot be built"
	ln -sf "$PGLIB"/{autoinc,refint}.so "$here"
	chmod -R a+rX "$SRC/postgresql-$VERSION"
}

# PROGRAM FOLDER SCHEDULE PORT: a server of its own for each, and nobody's, as it does not run as root.
part() {
	local source=$SRC/postgresql-$VERSION/src/test/$2 out=$PWD/$2 nobody=
	rm -rf "$out" && mkdir -p "$out/testtablespace" || return
	if [ "$(id -u)" = 0 ]; then
		nobody="setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp"
		chown -R 65534:65534 "$out"
	fi
	# shellcheck disable=SC2086
	PATH=${PGLIB%/lib}/bin:$PATH PGTZ=PST8PDT alone $nobody timeout -k 5 1500 ${UNDER:-} "$TESTERS/$2/$1" --temp-instance="$out/instance" \
		--host=127.0.0.1 --port="$4" --inputdir="$source" --outputdir="$out" --bindir= --no-locale --max-concurrent-tests=20 \
		--dlpath="$SRC/postgresql-$VERSION/src/test/regress" --schedule="$source/$3" </dev/null | tee -a /dev/stderr |
		sed -unE 's/^(test)? +([^ ]+) +\.\.\. ok .*/ok \2/p; s/^(test)? +([^ ]+) +\.\.\. FAILED.*/not ok \2/p'
}

run() {
	part pg_regress regress parallel_schedule 6001
	part pg_isolation_regress isolation isolation_schedule 6002
}
