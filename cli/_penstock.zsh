#compdef penstock
# SPDX-License-Identifier: Apache-2.0
# Completes the words of a penstock command line in zsh. Installed as _penstock in a folder
# from which zsh loads completions. The script reads the commands and options, with their
# descriptions, from the output of `penstock help`. Only the values of options are listed here.

# Offers the lines that a command prints as completions. $1 is the title of the list. $2 is a
# sed pattern for a line; its group 1 is the word to offer, its group 3 the description. The
# remaining arguments are the command.
_penstock_list() {
	local -a found
	found=(${(f)"$(_call_program list "${(@q)@[3,-1]}" 2>/dev/null |
		sed -En "s/$2/\1:\3/p")"})
	_describe -t "$1" "$1" found
}

_penstock_commands() {
	local -a more=(help:'list the commands, or the options of one' --help --version)

	_penstock_list command '^  ([a-z]+)( )+([^ ].*)' $words[1] --help
	_describe -t command command more
}

_penstock_options() {
	local -a more=(--help)

	_penstock_list option '^  (--[a-z-]+)( [^ ]+)? +([^ ].*)' $words[1] help $words[2]
	_describe -t option option more
	[[ $words[2] != model || $words[3] == -* ]] ||
		compadd -- ${(f)"$(_call_program options $words[1] model $words[3] --help 2>/dev/null |
			sed -En 's/^  (--[a-z-]+) [^ ]+$/\1/p')"}
}

# Offers the words that may follow the previous word of `penstock model`. Returns false if there
# are none.
_penstock_model() {
	local -a found

	if ((CURRENT == 3)) && [[ $words[CURRENT] != -* ]]; then
		_penstock_list model '^  ([a-z]+)( )+([^ ].*)' $words[1] model
		return 0
	elif [[ $words[CURRENT-1] == --preset ]]; then
		found=(${(f)"$(_call_program presets $words[1] model $words[3] --help 2>/dev/null |
			sed -n '/^Presets/,$s/^  \([a-z0-9][a-z0-9.-]*\)$/\1/p')"})
	elif [[ $words[CURRENT-1] == --* ]]; then
		found=(${(s:|:)"$(_call_program choices $words[1] model $words[3] --help 2>/dev/null |
			sed -n "s/^  $words[CURRENT-1] \([a-z0-9-]*|[^ ]*\)$/\1/p")"})
	fi
	(($#found)) && compadd -- $found
}

_penstock_devices() {
	local -a found=(host auto cuda:0
		${(f)"$(_call_program devices $words[1] topo 2>/dev/null |
			sed -n 's/^  GPU\([0-9]*\) .*/cuda:\1/p')"})

	compadd -- ${(u)found}
}

# Offers the possible values of the option $1. Returns false if the option has no value.
_penstock_value() {
	case $1 in
	--via | --device) _penstock_devices ;;
	--require) compadd -- any no-cpu-copy direct ;;
	--expect) compadd -- no-cpu-copy direct ;;
	--effort) compadd -- thrifty balanced fast ;;
	--engine) compadd -- auto uring threads ;;
	--path) compadd -- p2p odirect vendor rdma mapped staged bounce null fault: ;;
	--rw) compadd -- read write randread randwrite ;;
	--sys-root | --root | --stripe | -D) _files -/ ;;
	-f) _files ;;
	-x) compadd -- 0 1 2 3 4 5 6 7 ;;
	-I) compadd -- 0 1 2 3 ;;
	-d) compadd -- host 0 ;;
	-m) compadd -- 0 2 3 4 ;;
	-O) compadd -- 0 1 ;;
	--size | --offset | --block | --depth | --lanes | --runtime | --ranks | --select | --shard | \
		--revision | --host | --jitter-ms | --reads-max | --stall-ms | --keep | -[nwBsoikT])
		_message "value of $1" ;;
	*) return 1 ;;
	esac
}

# Prints the number of positional arguments before the current word, that is, of words that are
# neither options nor values of options.
_penstock_place() {
	local -i i count=0

	for ((i = 3; i < CURRENT; i++)); do
		[[ $words[i] == -* ]] && continue
		(_penstock_value $words[i-1]) &>/dev/null || count+=1
	done
	echo $count
}

_penstock() {
	if ((CURRENT == 2)) || [[ $words[2] == help ]]; then
		_penstock_commands
	elif [[ $words[2] == model ]] && _penstock_model; then
		return
	elif [[ $words[CURRENT-1] == -* ]] && [[ $words[2] != model ]] &&
		_penstock_value $words[CURRENT-1]; then
		return
	elif [[ $words[CURRENT] == -* ]]; then
		_penstock_options
	elif [[ $words[2] == topo ]]; then
		_message 'no argument'
	elif [[ $words[2] == stats ]]; then
		_pids
	elif [[ $words[2] == run && $(_penstock_place) == 0 ]]; then
		_command_names -e
	elif [[ $words[2] == ckpt && $(_penstock_place) == 0 ]]; then
		compadd -- list verify prune
	elif [[ $words[2] == ckpt ]]; then
		_files -/
	elif [[ $words[2] == (explain|bench) && $(_penstock_place) == 1 ]]; then
		_penstock_devices
	else
		_files
	fi
}

_penstock "$@"
