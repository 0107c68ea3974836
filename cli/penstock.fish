# SPDX-License-Identifier: Apache-2.0
# Completes the words of a penstock command line in fish. Installed in a folder from which
# fish loads completions. The script reads the commands and options, with their descriptions,
# from the output of `penstock help`. Only the values of options are listed in this file.

function __penstock_commands
    $argv[1] --help 2>/dev/null | string replace -rf '^  ([a-z]+) +(\S.*)' '$1\t$2'
    printf '%s\n' help --help --version
end

function __penstock_options
    $argv[1] help $argv[2] 2>/dev/null | string replace -rf '^  (--[a-z-]+)(?: \S+)? +(\S.*)' '$1\t$2'
    echo --help
    if test "$argv[2]" = model; and set -q argv[3]
        $argv[1] model $argv[3] --help 2>/dev/null | string replace -rf '^  (--[a-z-]+) \S+$' '$1'
    end
end

# Prints the words that may follow the last word of a command line of `penstock model`.
function __penstock_model_values
    if not set -q argv[3]
        $argv[1] model 2>/dev/null | string replace -rf '^  ([a-z]+) +(\S.*)' '$1\t$2'
    else if test "$argv[-1]" = --preset
        $argv[1] model $argv[3] --help 2>/dev/null | sed -n '/^Presets/,$p' |
            string replace -rf '^  ([a-z0-9][a-z0-9.-]*)$' '$1'
    else if string match -q -- '--*' $argv[-1]
        $argv[1] model $argv[3] --help 2>/dev/null |
            string replace -rf -- "^  $argv[-1] ([a-z0-9-]*\|\S+)\$" '$1' | string split '|'
    end
end

function __penstock_devices
    printf '%s\n' host auto cuda:0
    $argv[1] topo 2>/dev/null | string replace -rf '^  GPU([0-9]+) .*' 'cuda:$1'
end

# Prints the number of positional arguments on the line, that is, of words that are neither
# options nor values of options.
function __penstock_place
    set -l count 0
    for i in (seq 3 (count $argv))
        string match -q -- '-*' $argv[$i]; and continue
        __penstock_takes $argv[(math $i - 1)]; and continue
        set count (math $count + 1)
    end
    echo $count
end

# Succeeds if the option $argv[1] takes a value.
function __penstock_takes
    contains -- $argv[1] --via --device --require --expect --effort --engine --path --rw \
        --sys-root --root --stripe --select --shard --revision --host --size --offset \
        --block --depth --lanes --runtime --ranks --jitter-ms --reads-max --stall-ms --keep \
        -f -D -d -m -n -w -B -s -o -i -x -I -T -k -O
end

function __penstock_words
    set -l line (commandline -opc)
    set -l word (commandline -ct)
    if test (count $line) -lt 2
        __penstock_commands $line[1]
        return
    end
    if test "$line[2]" = model; and not string match -q -- '-*' $word
        set -l values (__penstock_model_values $line)
        if test -n "$values"
            printf '%s\n' $values
            return
        end
    else if test "$line[2]" = model
        __penstock_options $line[1..3]
        return
    end
    switch $line[-1]
        case help
            __penstock_commands $line[1]
            return
        case --via --device
            __penstock_devices $line[1]
            return
        case --require
            printf '%s\n' any no-cpu-copy direct
            return
        case --expect
            printf '%s\n' no-cpu-copy direct
            return
        case --effort
            printf '%s\n' thrifty balanced fast
            return
        case --engine
            printf '%s\n' auto uring threads
            return
        case --path
            printf '%s\n' p2p odirect vendor rdma mapped staged bounce null fault:
            return
        case --rw
            printf '%s\n' read write randread randwrite
            return
        case --sys-root --root --stripe -D
            __fish_complete_directories $word
            return
        case -x
            printf '%s\n' 0 1 2 3 4 5 6 7
            return
        case -I
            printf '%s\n' 0 1 2 3
            return
        case -d
            printf '%s\n' host 0
            return
        case -m
            printf '%s\n' 0 2 3 4
            return
        case -O
            printf '%s\n' 0 1
            return
        case '-*'
            if __penstock_takes $line[-1]
                test $line[-1] = -f; and __fish_complete_path $word
                return
            end
    end
    if string match -q -- '-*' $word
        __penstock_options $line[1] $line[2]
        return
    end
    switch $line[2]
        case topo
            return
        case stats
            __fish_complete_pids
            return
        case run
            if test (__penstock_place $line) -eq 0
                __fish_complete_command
                return
            end
        case ckpt
            if test (__penstock_place $line) -eq 0
                printf '%s\n' list verify prune
                return
            end
        case explain bench
            if test (__penstock_place $line) -eq 1
                __penstock_devices $line[1]
                return
            end
    end
    __fish_complete_path $word
end

complete -c penstock -f -a '(__penstock_words)'
