# Cases and groups of the bench of checksums, which another program has.
(( $+functions[_shortwire_cases] )) ||
_shortwire_cases() {
    local -aU cases
    cases=($(shortwire bench checksum --list 2>/dev/null | awk '{ print $1, $2 }'))
    _sequence compadd - $cases
}

# Units of systemd without .service, and programs.
(( $+functions[_shortwire_subjects] )) ||
_shortwire_subjects() {
    local places=/etc/systemd/system:/run/systemd/system:/usr/local/lib/systemd/system:/usr/lib/systemd/system:/lib/systemd/system
    local -a units pids
    units=(${^${(s.:.)${SYSTEMD_UNIT_PATH:-$places}}}/*.service(N:t:r))
    pids=(/proc/<->(N:t))
    local -a kinds=('units:unit:compadd -a units' 'commands:program:_command_names -e' 'files:program:_files')
    [[ $words[1] == doctor ]] && kinds+=('processes:process:compadd -a pids')
    _alternative $kinds
}

