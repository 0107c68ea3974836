# SPDX-License-Identifier: Apache-2.0
# Functions of the suites that cut the power: tests/lab/power and tests/lab/ckpt-power source this
# file. They kill QEMU while a guest writes durably, and the drive (lab/volatile-drive) loses a
# part of the data that was not flushed.
# shellcheck shell=bash disable=SC2154 # tests/lab/common.sh sets the variables.

# A library whose fsync(2) and fdatasync(2) do nothing, for controls that must lose data.
cat >"$tmp/stub.c" <<'END'
int fsync(int fd) { (void)fd; return 0; }
int fdatasync(int fd) { (void)fd; return 0; }
END
"${CC:-cc}" -shared -fPIC -o "$tmp/stub.so" "$tmp/stub.c"

# Prints how many files or checkpoints the guest has reported as durable.
reported() { grep -hs '^durable ' "$tmp/$1/output.log" | wc -l; } # NAME

# Runs a guest's script with the arguments ARGS. Kills the guest DELAY seconds after it has reported
# REPORTS files as durable.
power_cut() { # NAME REPORTS DELAY SCRIPT ARGS...
	local name=$1 reports=$2 delay=$3 run server drive guest code=0 deadline=$((SECONDS + 900))
	shift 3
	truncate -s 96M "$tmp/$name.img"
	mkfs.ext4 -q -F -b 4096 "$tmp/$name.img"
	lab/volatile-drive "$tmp/$name.img" "$tmp/$name.sock" "$reports" >"$tmp/$name.cut" &
	server=$!
	until [[ -S $tmp/$name.sock ]] || ! kill -0 $server; do sleep 0.1; done
	drive=driver=nbd,node-name=power,server.type=unix,server.path=$tmp/$name.sock
	"$lab" --out "$tmp/$name" --qemu -blockdev --qemu "$drive" \
		--qemu -device --qemu virtio-blk-pci,serial=power1,drive=power \
		"$@" >/dev/null 2>"$tmp/stderr" &
	run=$!
	until (($(reported "$name") >= reports)) || ! kill -0 $run 2>/dev/null ||
			((SECONDS > deadline)); do
		sleep 0.05
	done
	# Directly after a report no write is in flight, so the power is cut a little later.
	sleep "$delay"
	guest=$(pgrep -P $run qemu-system) && kill -KILL "$guest" || true
	wait $run || code=$?
	kill $server || true
	wait $server || true
	skip_without_lab $code "$tmp/stderr"
	note <"$tmp/$name.cut"
	(($(reported "$name") >= reports)) || note <"$tmp/stderr"
	note < <(grep -v '^durable' "$tmp/$name/output.log" | tail -n 5)
	check "$name: $(reported "$name") files were reported durable, wanted $reports" \
		test "$(reported "$name")" -ge "$reports"
	# If a guest fails to boot, lab/run boots again: the drive prints one line for each boot.
	check "$name: the drive saw a power cut and no shutdown" \
		bash -c "tail -n 1 '$tmp/$name.cut' | grep -q '^power cut: '"
	mkdir -p "$tmp/verify"
	grep '^durable ' "$tmp/$name/output.log" >"$tmp/verify/$name" || true
}

# Boots one guest that checks the drives of all cuts with SCRIPT.
verify_drives() { # SCRIPT COMMAND NAMES...
	local script=$1 command=$2 name args=()
	shift 2
	for name; do
		args+=(--qemu -drive --qemu "if=none,id=$name,format=raw,file=$tmp/$name.img"
			--qemu -device --qemu "virtio-blk-pci,serial=$name,drive=$name")
	done
	boot verify "$tmp/verify" "${args[@]}" "$script" verify "$command" "$@"
}
