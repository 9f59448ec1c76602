#!/usr/bin/env bash
# run.sh SUITE fetch    what the suite needs, into $SUITES; 77 and a last line that says why, if it cannot be had
# run.sh SUITE run      the suite, its programs behind $UNDER; a line for each test: begin, ok, not ok or skip, and its name
#
# A recipe NAME.sh beside this file defines both as functions. Tests that never end are the recipe's to stop.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SRC=$SUITES/src
ROOT=$SUITES/root
CODENAME=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
export DEBIAN_FRONTEND=noninteractive APT_CONFIG=$SUITES/apt/config

skip() {
	echo "$*"
	exit 77
}

# Lists of packages and sources of our own: the machine's may lack sources, and stay as they are.
lists() {
	[ -e "$SUITES/apt/done" ] && return
	command -v dpkg-source >/dev/null || skip "dpkg-dev is not installed"
	[ "$(. /etc/os-release && echo "$ID")" = debian ] || skip "not a Debian system"
	mkdir -p "$SUITES"/apt/{lists,cache/archives}/partial
	local from="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $CODENAME main"
	printf 'deb %s\ndeb-src %s\n' "$from" "$from" >"$SUITES/apt/sources.list"
	cat >"$APT_CONFIG" <<-CONFIG
		Dir::Etc::sourcelist "$SUITES/apt/sources.list";
		Dir::Etc::sourceparts "-";
		Dir::State::lists "$SUITES/apt/lists";
		Dir::Cache "$SUITES/apt/cache";
		APT::Sandbox::User "root";
	CONFIG
	apt-get update -qq >&2 || skip "no package lists from deb.debian.org"
	touch "$SUITES/apt/done"
}

# deb PACKAGE...: unpacked below $ROOT, not installed.
deb() {
	lists
	local package
	for package in "$@"; do
		[ -e "$ROOT/.$package" ] && continue
		mkdir -p "$ROOT" "$SUITES/debs"
		(cd "$SUITES/debs" && rm -f "${package}"_*.deb && apt-get download -qq "$package/$CODENAME" >&2) || skip "cannot fetch $package"
		dpkg -x "$SUITES/debs/$package"_*.deb "$ROOT" && touch "$ROOT/.$package"
	done
}

# source_of PACKAGE: Debian's patched source as $SRC/PACKAGE.
source_of() {
	[ -e "$SRC/$1" ] && return
	lists
	mkdir -p "$SRC/.$1"
	(cd "$SRC/.$1" && apt-get source -qq "$1/$CODENAME" >/dev/null 2>&1) || skip "cannot fetch the source of $1"
	mv "$SRC/.$1"/*/ "$SRC/$1" && rm -r "$SRC/.$1"
}

needs() {
	local program
	for program in "$@"; do command -v "$program" >/dev/null || skip "$program is not installed"; done
}

# Programs in a network of their own: suites use fixed ports. By bash: other shells drop exported functions.
alone() {
	if unshare -n true 2>/dev/null; then
		unshare -n bash -c 'ip link set lo up; exec "$@"' bash "$@"
	else
		"$@"
	fi
}

# A program as the suite's run is to have it. UNDER is a list of words.
under() {
	# shellcheck disable=SC2086
	alone ${UNDER:-} "$@"
}

# vtc FILE [OPTION...]: a file of Varnish's test program, with these options. By xargs, so with TMPDIR and ROOT exported.
vtc() {
	local file=$1 status=0 out=$TMPDIR/${1//\//_}.out
	shift
	${UNDER:-} timeout -k 5 90 "$ROOT/usr/bin/varnishtest" -t 60 "$@" "$file" </dev/null >"$out" 2>&1 || status=$?
	case $status in
	0) echo "ok $file" ;;
	77) echo "skip $file" ;;
	*) echo "not ok $file" && cat "$out" >&2 ;;
	esac
}

# The results of TAP: the number goes, the description stays.
tap() {
	sed -nE 's/^ok [0-9]+ - .*# SKIP.*//; s/^(not ok|ok) [0-9]+ -? ?(.*)$/\1 \2/p'
}

# shellcheck source=/dev/null
. "$HERE/$1.sh"
mkdir -p "$SUITES/tmp/$1"
cd "$SUITES/tmp/$1" && "$2"
