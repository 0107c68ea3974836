# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# Downloads a Debian kernel of a given series (such as 7.2), unpacks the parts that the lab
# needs, and builds the initramfs. lab/run sources this file after lib/host.sh and calls
# lab_kernel. This file must not read or write the host's apt sources, package lists, package
# cache or /lib/modules. apt uses only directories in the lab's cache.

# The kernel series for tests with CONFIG_PCI_P2PDMA, and the series for tests without it.
# Debian's kernels have this option from 6.16 on; 6.1 and 6.12 do not have it.
lab_kernel_p2pdma=${PENSTOCK_LAB_KERNEL:-7.2}
lab_kernel_plain=6.1

# The folders of modules, and the single modules, that are unpacked. All modules of a kernel would
# take 160 MB.
lab_module_dirs=(block drivers/nvme drivers/block drivers/infiniband/core
	drivers/infiniband/sw drivers/md drivers/virtio drivers/char
	drivers/vfio drivers/iommu drivers/dma-buf drivers/net/veth.ko
	drivers/net/dummy.ko drivers/net/virtio_net.ko drivers/net/net_failover.ko
	drivers/firmware arch/x86 crypto lib virt fs/9p fs/netfs fs/fscache
	fs/overlayfs fs/ext4 fs/jbd2 fs/mbcache.ko fs/xfs fs/btrfs fs/fuse fs/nfs
	fs/nfsd fs/nfs_common fs/lockd fs/configfs fs/nls net/9p net/core
	net/ipv4 net/ipv6 net/sunrpc net/sched net/tls net/handshake net/802)

# The modules that the initramfs loads, in this order: each module after the modules that it
# depends on.
lab_boot_modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay)

lab_kernel_suite() { # SERIES: prints the Debian suite that has it
	case $1 in
	6.1) echo bookworm ;;
	6.12) echo trixie ;;
	*) echo trixie-backports ;;
	esac
}

# Prints the package mirrors to try, in this order: the mirrors in this host's apt sources,
# then Debian's own address.
lab_mirrors() {
	local uri release component codename
	if [[ ${PENSTOCK_LAB_MIRROR:-} ]]; then
		echo "$PENSTOCK_LAB_MIRROR"
		return
	fi
	codename=$(. /etc/os-release && [[ $ID == debian ]] && echo "$VERSION_CODENAME") ||
		codename=
	{
		# shellcheck disable=SC2016 # apt expands the format, not the shell.
		apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' \
				'Created-By: Packages' 2>/dev/null |
			while read -r uri release component; do
				[[ $component != main || $release != "$codename" ]] ||
					echo "$uri"
			done
		echo http://deb.debian.org/debian/
	} | awk '!seen[$0]++'
}

# Runs a tool of apt with directories of the lab. The tool reads the host's apt.conf, which may
# name a proxy. It ignores the hooks in apt.conf, because some hooks delete the host's package
# cache.
lab_apt() { # DIR TOOL ARGS...
	local dir=$1 tool=$2
	shift 2
	APT_CONFIG=$dir/apt.conf timeout --foreground 900 "$tool" \
		-o Dir::Etc::SourceList="$dir/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null -o Dir::State="$dir/state" \
		-o Dir::State::Lists="$dir/lists" -o Dir::State::Status="$dir/status" \
		-o Dir::Cache="$dir/cache" -o APT::Sandbox::User= \
		-o APT::Architecture=amd64 -o Acquire::Languages=none \
		-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
		-o Acquire::Retries=2 -qq "$@" </dev/null
}

lab_apt_init() { # DIR: creates the private directories and apt.conf
	local dir=$1 f
	rm -rf "$dir/conf.d"
	mkdir -p "$dir/conf.d" "$dir/state" "$dir/lists/partial" \
		"$dir/cache/archives/partial"
	: >"$dir/status"
	for f in /etc/apt/apt.conf.d/*; do
		[[ -e $f ]] && ln -s "$f" "$dir/conf.d/"
	done
	printf '#clear %s;\n' APT::Update::Pre-Invoke APT::Update::Post-Invoke \
		APT::Update::Post-Invoke-Success DPkg::Post-Invoke >"$dir/conf.d/zz-lab"
	printf 'Dir::Etc::Parts "%s";\n' "$dir/conf.d" >"$dir/apt.conf"
}

# Downloads the package lists from the first mirror that answers. Returns false if no mirror
# answers.
lab_apt_update() { # DIR SUITE
	local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror
	while read -r mirror; do
		echo "deb [signed-by=$keys] $mirror $2 main" >"$1/sources.list"
		lab_apt "$1" apt-get -o APT::Update::Error-Mode=any update >&2 && return
	done < <(lab_mirrors)
	return 1
}

# Prints the version of the newest kernel package of a series. SERIES 'newest' means any
# series from 6.16 on.
lab_kernel_pick() { # DIR SERIES
	local series=${2//./\\.}
	[[ $2 != newest ]] || series='(6\.1[6-9]|[7-9]\.[0-9]+)'
	lab_apt "$1" apt-cache pkgnames linux- |
		grep -E "^linux-(binary|image)-$series\.[0-9]+(\+deb[0-9]+|-[0-9]+)-amd64$" |
		sed -E 's/^linux-(binary|image)-//' | sort -Vu | tail -n 1
}

lab_kernel_unpack() { # DEB-DIR TREE: unpacks the wanted files of all packages
	local deb d
	local -a want=('*/vmlinuz*' '*/config-*' '*/modules.builtin*' '*/modules.order')
	for d in "${lab_module_dirs[@]}"; do
		want+=("*/kernel/$d*")
	done
	mkdir -p "$2"
	for deb in "$1"/*.deb; do
		# tar exits with 2 if one of the patterns matches no file. Each of these
		# packages has files for only some of the patterns, so the exit code is
		# ignored.
		dpkg-deb --fsys-tarfile "$deb" |
			tar -x -C "$2" --wildcards "${want[@]}" 2>/dev/null || true
	done
}

# Exits with 77 because no kernel could be downloaded. Records this failure in the cache, so
# that the next start of the lab does not wait for the same mirror.
lab_kernel_missing() { # CACHE SERIES TEXT
	echo "$3" >"$1/no-kernel-$2"
	lab_die "$lab_exit_skip" "no kernel $2 is available: $3"
}

# Exits with 77 if lab_kernel_missing recorded this series in the last ten minutes.
lab_kernel_missed() { # CACHE SERIES
	local file
	file=$(find "$1" -maxdepth 1 -name "no-kernel-$2" -mmin -10)
	[[ ! $file ]] || lab_die "$lab_exit_skip" "no kernel $2 is available:" \
		"$(cat "$file"), some minutes ago"
}

# Downloads and unpacks the packages of a kernel version. Creates CACHE/kernels/VERSION with
# vmlinuz and lib/modules/VERSION, and only when both are complete. Returns false if that
# fails.
lab_kernel_install() { # CACHE APT VERSION
	local cache=$1 apt=$2 version=$3 tmp p
	local -a debs=()
	# Removes directories that killed runs have left. No other run can be using them,
	# because this run holds the lock.
	rm -rf "$cache"/fetch.*
	lab_say "fetching kernel $version"
	tmp=$(mktemp -d "$cache/fetch.XXXXXX")
	# From kernel 7.1 on, Debian's package linux-image is empty, and linux-binary and
	# linux-modules contain the files.
	for p in binary modules base image; do
		[[ ! $(lab_apt "$apt" apt-cache pkgnames "linux-$p-$version") ]] ||
			debs+=("linux-$p-$version")
	done
	(cd "$tmp" && lab_retry lab_apt "$apt" apt-get download "${debs[@]}") >&2 || {
		rm -rf "$tmp"
		return 1
	}
	lab_kernel_unpack "$tmp" "$tmp/tree"
	mkdir -p "$tmp/out/lib/modules" "$cache/kernels"
	find "$tmp/tree" -name 'vmlinuz*' -type f -exec mv {} "$tmp/out/vmlinuz" \;
	find "$tmp/tree" -name 'config-*' -type f -exec mv {} "$tmp/out/config" \;
	mv "$(find "$tmp/tree" -type d -path "*/lib/modules/$version")" \
		"$tmp/out/lib/modules/" || true
	if [[ ! -s $tmp/out/vmlinuz ]] || ! depmod -b "$tmp/out" "$version" 2>/dev/null; then
		rm -rf "$tmp"
		return 1
	fi
	chmod -R a+rX "$tmp/out"
	mv -T "$tmp/out" "$cache/kernels/$version"
	rm -rf "$tmp"
}

# Makes CACHE/kernels/series-SERIES a link to a kernel of that series. Returns false if
# Debian has no such series, and exits with 77 if no mirror answers.
lab_kernel_fetch() { # CACHE SERIES
	local cache=$1 series=$2 apt version
	lab_kernel_missed "$cache" "$series"
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
		lab_kernel_missing "$cache" "$series" "apt-get or dpkg-deb is not installed"
	apt=$cache/apt/$(lab_kernel_suite "$series")
	lab_apt_init "$apt"
	lab_retry lab_apt_update "$apt" "$(lab_kernel_suite "$series")" ||
		lab_kernel_missing "$cache" "$series" \
			"cannot read the package lists of $(lab_mirrors | xargs)"
	version=$(lab_kernel_pick "$apt" "$series")
	[[ $version ]] || return 1
	[[ -e $cache/kernels/$version ]] ||
		lab_kernel_install "$cache" "$apt" "$version" ||
		lab_kernel_missing "$cache" "$series" "cannot download and unpack $version"
	ln -sfnT "$version" "$cache/kernels/series-$series"
}

# Prints the path of a kernel's initramfs. Builds the initramfs if it does not exist. Its file
# name contains a hash of the files that it is built from, so that a changed file leads to a
# new initramfs.
lab_initramfs() { # KERNEL-DIR VERSION BOOT-SCRIPT
	local dir=$1 version=$2 boot=$3 image tree m line
	image=$dir/initramfs-$(cat "$boot" "${BASH_SOURCE[0]}" /bin/busybox |
		sha256sum | cut -c 1-12).cpio
	if [[ ! -e $image ]]; then
		tree=$(mktemp -d "$dir/ird.XXXXXX")
		mkdir -p "$tree"/{bin,modules,proc,sys,dev,host,rw,root}
		cp /bin/busybox "$tree/bin/busybox"
		install -m 755 "$boot" "$tree/init"
		for m in "${lab_boot_modules[@]}"; do
			# A module that is built into the kernel has no file. For some of these
			# modules, modprobe fails, which is ignored.
			modprobe -d "$dir" -S "$version" --show-depends "$m" 2>/dev/null |
				while read -r what line _; do
					[[ $what == insmod ]] || continue
					echo "$line"
				done
		done | awk '!seen[$0]++' | while read -r line; do
			m=$(basename "$line" .xz)
			case $line in
			*.xz) xz -dc "$line" >"$tree/modules/$m" ;;
			*) cp "$line" "$tree/modules/$m" ;;
			esac
			echo "$m" >>"$tree/modules/order"
		done
		(cd "$tree" && find . | cpio -o -H newc --quiet) >"$image.$$"
		mv "$image.$$" "$image"
		rm -rf "$tree"
	fi
	echo "$image"
}

# Finds or downloads a kernel and sets lab_kernel_version, lab_kernel_image,
# lab_kernel_modules and lab_initrd. SPEC is p2pdma, without, newest or a series.
lab_kernel() { # CACHE SPEC BOOT-SCRIPT
	local cache=$1 series=$2 dir
	case $series in
	p2pdma) series=$lab_kernel_p2pdma ;;
	without) series=$lab_kernel_plain ;;
	esac
	[[ $series =~ ^([0-9]+\.[0-9]+|newest)$ ]] ||
		lab_die 2 "unknown kernel '$2': use p2pdma, without, newest or a series like 6.12"
	exec 8>"$cache/kernel.lock"
	flock 8
	dir=$cache/kernels/series-$series
	# Debian's backports contain only the newest series, so an older series may no longer
	# be available.
	if [[ ! -e $dir/vmlinuz ]] && ! lab_kernel_fetch "$cache" "$series" &&
			[[ $2 == p2pdma && $series != newest ]]; then
		series=newest
		dir=$cache/kernels/series-newest
		[[ -e $dir/vmlinuz ]] || lab_kernel_fetch "$cache" newest || true
	fi
	[[ -e $dir/vmlinuz ]] || lab_kernel_missing "$cache" "$series" \
		"found none at $(lab_mirrors | xargs)"
	dir=$(readlink -f "$dir")
	lab_kernel_version=${dir##*/}
	lab_kernel_image=$dir/vmlinuz
	lab_kernel_modules=$dir/lib/modules/$lab_kernel_version
	lab_initrd=$(lab_initramfs "$dir" "$lab_kernel_version" "$3")
	flock -u 8
	exec 8>&-
}
