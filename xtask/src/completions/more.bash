
# Programs, units, processes, and lists with commas, which clap's part above does not know.

# Units of systemd without .service.
_shortwire_units() {
    local IFS=: folder unit
    local places=/etc/systemd/system:/run/systemd/system:/usr/local/lib/systemd/system:/usr/lib/systemd/system:/lib/systemd/system
    for folder in ${SYSTEMD_UNIT_PATH:-$places}; do
        for unit in "$folder"/*.service; do
            [[ -e $unit ]] || continue
            unit=${unit##*/}
            printf '%s\n' "${unit%.service}"
        done
    done
}

# What may stand in a list: $1 is the command and its option.
_shortwire_list() {
    case $1 in
@LISTS@    'bench checksum --only') shortwire bench checksum --list 2>/dev/null | awk '{ print $1, $2 }' ;;
    *) return 1 ;;
    esac
}

_shortwire_all() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} option list at
    COMPREPLY=()
    # bash takes --only=x for three words.
    option=$prev
    [[ $prev != = ]] || option=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $cur != = ]] || { option=$prev cur=; }
    if list=$(_shortwire_list "$command ${COMP_WORDS[2]} $option" || _shortwire_list "$command $option"); then
        local before=
        [[ $cur != *,* ]] || before=${cur%,*},
        COMPREPLY=($(compgen -P "$before" -W "$list" -- "${cur##*,}"))
        compopt -o nospace 2>/dev/null
        return
    fi
    case $command in
    run | gain | trace-clc)
        for ((at = 2; at < COMP_CWORD; at++)); do
            [[ ${COMP_WORDS[at]} != -- ]] || break
        done
        if ((at < COMP_CWORD - 1)); then
            if declare -F _command_offset >/dev/null; then
                _command_offset $((at + 1))
            else
                COMPREPLY=($(compgen -f -- "$cur"))
            fi
            return
        fi
        if ((at < COMP_CWORD)) || [[ $cur != -* && $prev != -* ]]; then
            COMPREPLY=($(compgen -c -- "$cur"))
            return
        fi
        ;;
    enable | disable | doctor)
        if [[ $cur != -* && $prev != --set && $prev != --root ]]; then
            COMPREPLY=($(compgen -c -- "$cur") $(compgen -W "$(_shortwire_units)" -- "$cur"))
            [[ $command != doctor ]] || COMPREPLY+=($(cd /proc && compgen -G "$cur[0-9]*"))
            return
        fi
        ;;
    esac
    _shortwire "$@"
}

complete -F _shortwire_all -o bashdefault -o default shortwire
