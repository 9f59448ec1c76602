# The socket modules of the perl that is installed, by the tests of its source.
fetch() {
	needs perl prove
	source_of perl
}

run() {
	local module
	for module in dist/IO cpan/Socket cpan/IO-Socket-IP cpan/HTTP-Tiny cpan/libnet; do
		(
			cd "$SRC/perl/$module" || exit
			for file in t/*.t; do
				under timeout -k 5 120 perl "$file" </dev/null | tee -a /dev/stderr | tap | sed "s|\$| ($module/$file)|"
			done
		)
	done
}
