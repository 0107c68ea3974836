# SPDX-License-Identifier: Apache-2.0
# Completes the words of a penstock command line in bash. Installed in the folder of
# bash-completion. The script reads the commands and options from the output of `penstock
# help`, so that it need not list them. Only the values of options are listed in this file.
# shellcheck shell=bash disable=SC2207  # the words of our own help contain no blanks

# Prints the options of the command $1, which it reads from the command's help. The parameters of
# a model are options, too.
_penstock_words() {
	{
		"${COMP_WORDS[0]}" help "$1"
		[[ $1 == model && ${COMP_WORDS[2]} != -* ]] &&
			"${COMP_WORDS[0]}" model "${COMP_WORDS[2]}" --help
	} 2>/dev/null |
		sed -n '/^  .*--/{s/[^-]*\(--[a-z-]*\)[^-]*/\1 /g;p}' | tr ' ' '\n' |
		grep -x -e '--[a-z][a-z-]*'
	echo --help
}

# Prints the words of the model ${COMP_WORDS[2]} that may follow the option $1, or nothing.
_penstock_model_value() {
	if [[ $1 == --preset ]]; then
		"${COMP_WORDS[0]}" model "${COMP_WORDS[2]}" --help 2>/dev/null |
			sed -n '/^Presets/,$s/^  \([a-z0-9][a-z0-9.-]*\)$/\1/p'
	elif [[ $1 == --* ]]; then
		"${COMP_WORDS[0]}" model "${COMP_WORDS[2]}" --help 2>/dev/null |
			sed -n "s/^  $1 \([a-z0-9-]*|.*\)/\1/p" | tr '|' ' '
	fi
}

_penstock_commands() {
	"${COMP_WORDS[0]}" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p'
}

_penstock_devices() {
	echo host auto cuda:0
	"${COMP_WORDS[0]}" topo 2>/dev/null | sed -n 's/^  GPU\([0-9]*\) .*/cuda:\1/p'
}

# Prints the number of positional arguments before word number $1, that is, of words that are
# neither options nor values of options.
_penstock_place() {
	local i count=0
	for ((i = 2; i < $1; i++)); do
		case ${COMP_WORDS[i]} in
		-*) ;;
		[:=]) ((++i)) ;; # the shell splits cuda:0 into three words
		*) [[ $(_penstock_value "${COMP_WORDS[i - 1]}") ]] || ((++count)) ;;
		esac
	done
	echo "$count"
}

# Prints the possible values of the option $1, or nothing if the option has no value.
_penstock_value() {
	case $1 in
	--via | --device) _penstock_devices ;;
	--require) echo any no-cpu-copy direct ;;
	--expect) echo no-cpu-copy direct ;;
	--effort) echo thrifty balanced fast ;;
	--engine) echo auto uring threads ;;
	--path) echo p2p odirect vendor rdma mapped staged bounce null fault: ;;
	--rw) echo read write randread randwrite ;;
	--sys-root | --root | -D) echo DIRECTORY ;;
	-d) echo host 0 ;;
	-x) echo 0 1 2 3 4 5 6 7 ;;
	-I) echo 0 1 2 3 ;;
	-m) echo 0 2 3 4 ;;
	-O) echo 0 1 ;;
	-[nwsoikT]) echo NUMBER ;;
	--size | --offset | --block | --depth | --lanes | --runtime | --ranks) echo NUMBER ;;
	--jitter-ms | --reads-max | --stall-ms | --keep) echo NUMBER ;;
	esac
}

_penstock() {
	local word=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]} values i
	word=${word##*[[:space:]]} # the whole word, even if the shell splits it at a colon

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W "$(_penstock_commands) help --help --version" -- "$word"))
		return
	fi
	if [[ $command == help ]]; then
		COMPREPLY=($(compgen -W "$(_penstock_commands)" -- "$word"))
		return
	fi
	i=$COMP_CWORD
	[[ $word == *:* ]] && while [[ ${COMP_WORDS[i]} != "${word%%:*}" ]] && ((i > 1)); do
		((i--))
	done
	values=
	if [[ $command == model ]]; then
		((COMP_CWORD == 2)) && [[ $word != -* ]] &&
			values=$("${COMP_WORDS[0]}" model 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p')
		[[ $values ]] || values=$(_penstock_model_value "${COMP_WORDS[i - 1]}")
	else
		values=$(_penstock_value "${COMP_WORDS[i - 1]}")
	fi
	case $values in
	NUMBER) return ;;
	DIRECTORY)
		COMPREPLY=($(compgen -d -- "$word"))
		return
		;;
	esac
	if [[ -z $values && $word == -* ]]; then
		values=$(_penstock_words "$command")
	elif [[ -z $values && $command == stats ]]; then
		values=$(cd /proc && echo [0-9]*)
	elif [[ -z $values && $command == ckpt && $(_penstock_place "$i") -eq 0 ]]; then
		values='list verify prune'
	elif [[ -z $values && $command =~ ^(explain|bench)$ && $(_penstock_place "$i") -eq 1 ]]; then
		values=$(_penstock_devices)
	fi
	if [[ -z $values && $command == run && $(_penstock_place "$COMP_CWORD") -eq 0 ]]; then
		COMPREPLY=($(compgen -c -- "$word"))
		return
	fi
	[[ $values ]] || return # the shell itself completes file names
	COMPREPLY=($(compgen -W "$values" -- "$word"))
	[[ $word == *:* && $COMP_WORDBREAKS == *:* ]] &&
		COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
	return 0
}
complete -o default -F _penstock penstock
