# SPDX-License-Identifier: Apache-2.0
# Functions of the suites that cut the power: tests/lab/power, tests/lab/ckpt-power and
# tests/lab/serve-power source this file. They kill QEMU while a guest writes durably, and the drive
# (lab/volatile-drive) loses a part of the data that was not flushed. Or they copy the drive as it
# would be if the power was cut, and the guest goes on: so one boot is enough for many cuts.
# shellcheck shell=bash disable=SC2154 # tests/lab/common.sh sets the variables.

# A library for controls that must lose data. It replaces fsync(2) and fdatasync(2) by functions
# that do nothing. With STUB_SYNC=folders or STUB_SYNC=files in the environment, they do nothing
# only for folders or only for files.
cat >"$tmp/stub.c" <<'END'
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int skips(int fd)
{
	const char *what = getenv("STUB_SYNC");
	struct stat st;
	return !what || (!fstat(fd, &st) && S_ISDIR(st.st_mode) == !strcmp(what, "folders"));
}
int fsync(int fd) { return skips(fd) ? 0 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return skips(fd) ? 0 : (int)syscall(SYS_fdatasync, fd); }
END
"${CC:-cc}" -shared -fPIC -o "$tmp/stub.so" "$tmp/stub.c"
drive_size=96M
verify_args=()

# Prints how many files, checkpoints or objects the guest has reported as durable.
reported() { grep -hs '^durable ' "$tmp/$1/output.log" | wc -l; } # NAME
has_reported() { (($(reported "$1") >= $2)); } # NAME REPORTS

# Starts the drive (a process of lab/volatile-drive), and boots a guest that has this drive and runs
# a script. Sets `server` to the process ID of the drive, and `run` to that of lab/run. SEED selects
# the data that the drive loses.
power_on() { # NAME SEED SCRIPT ARGS...
	local name=$1 seed=$2 drive
	shift 2
	truncate -s "$drive_size" "$tmp/$name.img"
	mkfs.ext4 -q -F -b 4096 "$tmp/$name.img"
	lab/volatile-drive "$tmp/$name.img" "$tmp/$name.sock" "$seed" >"$tmp/$name.cut" &
	server=$!
	until [[ -S $tmp/$name.sock ]] || ! kill -0 $server; do sleep 0.1; done
	drive=driver=nbd,node-name=power,server.type=unix,server.path=$tmp/$name.sock
	"$lab" --out "$tmp/$name" --qemu -blockdev --qemu "$drive" \
		--qemu -device --qemu virtio-blk-pci,serial=power1,drive=power \
		"$@" >/dev/null 2>"$tmp/stderr" &
	run=$!
	mkdir -p "$tmp/verify"
	power_deadline=$((SECONDS + 900))
}

# Waits until a command succeeds. Returns false if the guest has ended, or after 900 seconds.
power_until() { # COMMAND...
	until "$@"; do
		kill -0 $run 2>/dev/null && ((SECONDS < power_deadline)) || return 1
		sleep 0.05
	done
}

# Saves the lines in which the guest NAME has reported durable data. The check of the drive COPY
# reads them.
keep_reports() { # NAME COPY
	grep -s '^durable ' "$tmp/$1/output.log" >"$tmp/verify/$2" || true
}

# Copies the drive as it would be if the power was cut after the lines printed so far.
power_copy() { # NAME COPY
	keep_reports "$1" "$2"
	kill -USR1 $server
	until [[ -e $tmp/$1.img.cut ]] || ! kill -0 $server; do sleep 0.05; done
	mv "$tmp/$1.img.cut" "$tmp/$2.img"
}

# Kills the guest, and ends the process of its drive (lab/volatile-drive).
power_off() { # NAME
	local name=$1 guest code=0
	guest=$(pgrep -P $run qemu-system) && kill -KILL "$guest" || true
	wait $run || code=$?
	kill $server || true
	wait $server || true
	skip_without_lab $code "$tmp/stderr"
	note <"$tmp/$name.cut"
	note < <(grep -v '^durable' "$tmp/$name/output.log" | tail -n 5)
	# If a guest fails to boot, lab/run boots again. The process of the drive prints one line
	# for each boot, so only the last line counts.
	check "$name: the drive saw a power cut and no shutdown" \
		bash -c "tail -n 1 '$tmp/$name.cut' | grep -q '^power cut: '"
	keep_reports "$name" "$name"
}

# Runs a guest's script with the arguments ARGS. Kills the guest DELAY seconds after it has reported
# REPORTS files as durable.
power_cut() { # NAME REPORTS DELAY SCRIPT ARGS...
	local name=$1 reports=$2 delay=$3
	shift 3
	power_on "$name" "$reports" "$@"
	power_until has_reported "$name" "$reports" || true
	# Directly after a report no write is in flight, so the power is cut a little later.
	sleep "$delay"
	power_off "$name"
	has_reported "$name" "$reports" || note <"$tmp/stderr"
	check "$name: $(reported "$name") files were reported durable, wanted $reports" \
		has_reported "$name" "$reports"
}

# Boots one guest that checks the drives of all cuts with SCRIPT. The array verify_args has further
# arguments that precede the names.
verify_drives() { # SCRIPT COMMAND NAMES...
	local script=$1 command=$2 name args=()
	shift 2
	for name; do
		args+=(--qemu -drive --qemu "if=none,id=$name,format=raw,file=$tmp/$name.img"
			--qemu -device --qemu "virtio-blk-pci,serial=$name,drive=$name")
	done
	boot verify "$tmp/verify" "${args[@]}" "$script" verify "$command" \
		"${verify_args[@]}" "$@"
}
