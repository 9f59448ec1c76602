
# Programs, units, processes, and lists with commas, which clap's part above does not know.

# Units of systemd without .service.
function __fish_shortwire_units
    set -l places /etc/systemd/system /run/systemd/system /usr/local/lib/systemd/system /usr/lib/systemd/system /lib/systemd/system
    set -q SYSTEMD_UNIT_PATH
    and set places (string split : -- $SYSTEMD_UNIT_PATH)
    for folder in $places
        string replace -r '.*/(.*)\.service$' '$1' -- $folder/*.service
    end
end

function __fish_shortwire_programs
    for file in $PATH/(commandline -ct)*
        test -f $file -a -x $file
        and string replace -r '.*/' '' -- $file
    end
end

function __fish_shortwire_pids
    string replace /proc/ '' -- (string match -r '^/proc/[0-9]+$' -- /proc/*)
end

# What the program's own completions say, behind our options and --.
function __fish_shortwire_program
    set -l words (commandline -cop)
    set -e words[1..2]
    set -l valued @VALUED@
    while set -q words[1]
        switch $words[1]
            case --
                set -e words[1]
                break
            case '-*'
                contains -- $words[1] $valued
                and set -q words[2]
                and set -e words[2]
                set -e words[1]
            case '*'
                break
        end
    end
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c shortwire -n "__fish_shortwire_using_subcommand run gain trace-clc" -x -a "(__fish_shortwire_program)"
complete -c shortwire -n "__fish_shortwire_using_subcommand enable disable doctor" -f -a "(__fish_shortwire_units)" -d Unit
complete -c shortwire -n "__fish_shortwire_using_subcommand enable disable doctor" -a "(__fish_shortwire_programs)" -d Program
complete -c shortwire -n "__fish_shortwire_using_subcommand doctor" -f -a "(__fish_shortwire_pids)" -d Process
complete -c shortwire -n "__fish_shortwire_using_subcommand bench; and __fish_seen_subcommand_from checksum" -l only -x -a "(__fish_append , (shortwire bench checksum --list 2>/dev/null | awk '{ print \$1; print \$2 }' | sort -u))"
@LISTS@
