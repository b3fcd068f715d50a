#!/bin/bash
# Builds what the Soft-RoCE machine always needs, once: a stock Debian kernel, Linux 6.12 (downloaded and
# unpacked, never installed) and an initramfs with busybox, the kernel modules in load order,
# libibverbs with its rxe provider, `rdma`, `ip` and perftest.
#
# Output: $CACHE/vmlinuz and $CACHE/base.cpio.gz
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
# depmod, modprobe and tc are there; an ordinary user's path may lack it.
PATH=$PATH:/usr/sbin:/sbin
CACHE=${SOFTROCE_CACHE:-$HERE/../.cache/softroce}
# Debian 12's own Linux 6.1 has a Soft-RoCE that ends connections, or brings wrong bytes, under load.
KERNEL=${SOFTROCE_KERNEL:-linux-image-6.12-amd64}
ARCHIVE=http://deb.debian.org/debian-security
MODULES="crc32_generic crc32c_generic dummy veth sch_netem udp_tunnel ip6_udp_tunnel ib_core ib_cm iw_cm
         rdma_cm ib_uverbs rdma_ucm rdma_rxe"
APPLETS="cat cp cut date dd dmesg echo env expr false find grep head hostname ifconfig kill
         ln ls mkdir mknod mount mv nproc pgrep pkill poweroff printf ps pwd readlink rm sed seq
         setsid sleep sort stty sync tail tee test time timeout top touch tr true ulimit umount
         uname uniq usleep wc xargs taskset insmod lsmod awk cmp free nohup ping mktemp id"

die() { echo "softroce: $*" >&2; exit 1; }

# Downloads the kernel that the package KERNEL depends on.
download_kernel() {
    local image
    image=$(apt-cache depends "$KERNEL" 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    [ -n "$image" ] || { echo "softroce: $KERNEL is not known to apt" >&2; return 1; }
    echo "softroce: downloading $image"
    rm -rf "$CACHE/deb"
    mkdir -p "$CACHE/deb"
    # A folder that apt's own user may not enter is no error, only a warning.
    (cd "$CACHE/deb" && apt-get download -q "$image" 2>&1 >/dev/null | grep -v unsandboxed >&2 || true)
    ls "$CACHE"/deb/*.deb >/dev/null 2>&1
}

# The archive that has KERNEL, for machines whose own list of sources leaves it out: for apt in one folder, nothing
# of the machine is changed.
with_security_archive() {
    local apt=$CACHE/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $ARCHIVE bookworm-security main" >"$apt/sources.list"
    printf '%s\n' "Dir::Etc::sourcelist \"$apt/sources.list\";" 'Dir::Etc::sourceparts "-";' \
        "Dir::State::lists \"$apt/lists\";" "Dir::Cache::archives \"$apt/archives\";" \
        'Dir::Cache::pkgcache "";' 'Dir::Cache::srcpkgcache "";' >"$apt/apt.conf"
    echo "softroce: $KERNEL is taken from $ARCHIVE"
    export APT_CONFIG=$apt/apt.conf
    apt-get update -q >/dev/null && download_kernel
}

# Old lists name packages that the mirror has no more.
update_lists() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "softroce: apt-get update"
    $sudo apt-get update -q >/dev/null
}

# Downloads and unpacks the kernel.
fetch_kernel() {
    [ "$(cat "$CACHE/kernel/.done" 2>/dev/null)" = "$KERNEL" ] && return
    download_kernel || { update_lists && download_kernel; } || (with_security_archive) ||
        die "no package $KERNEL: not by this machine's sources of apt, and not in $ARCHIVE (SOFTROCE_KERNEL names another)"
    rm -rf "$CACHE/kernel"
    mkdir -p "$CACHE/kernel"
    dpkg-deb -x "$CACHE"/deb/*.deb "$CACHE/kernel"
    rm -rf "$CACHE/deb" "$CACHE/base.stamp"
    # busybox's insmod takes plain modules only.
    find "$CACHE/kernel/lib/modules" -name '*.ko.xz' -print0 | xargs -0r -P 2 -n 200 unxz
    depmod -b "$CACHE/kernel" "$(ls "$CACHE/kernel/lib/modules")"
    echo "$KERNEL" >"$CACHE/kernel/.done"
}

# Copies the modules with all that they need; writes /modules/order, one file name per line.
copy_modules() {
    local root=$1 kver m line
    kver=$(ls "$CACHE/kernel/lib/modules")
    mkdir -p "$root/modules"
    : >"$root/modules/order"
    for m in $MODULES; do
        modprobe -d "$CACHE/kernel" -S "$kver" --show-depends "$m" 2>/dev/null |
            awk '$1 == "insmod" { print $2 }' | while read -r line; do
            grep -qx "$(basename "$line")" "$root/modules/order" && continue
            cp "$line" "$root/modules/"
            basename "$line" >>"$root/modules/order"
        done
    done
    [ -f "$root/modules/rdma_rxe.ko" ] || die "the kernel package has no rdma_rxe module"
}

build_base() {
    local root=$CACHE/base f
    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc/libibverbs.d,usr/bin,t,root}
    cp /bin/busybox "$root/bin/busybox"
    for f in $APPLETS; do ln -sf busybox "$root/bin/$f"; done
    # Not busybox's own shell: it prefers its built-in, smaller `ip`.
    "$HERE/add_file.sh" "$root" /bin/dash /bin/sh
    copy_modules "$root"
    for f in "$(command -v ip)" "$(command -v rdma)" "$(command -v tc)" /usr/bin/ib_{send,write,read}_{bw,lat}; do
        "$HERE/add_file.sh" "$root" "$f" "/usr/bin/$(basename "$f")"
    done
    for f in /usr/lib/*/libibverbs/librxe-rdmav*.so /usr/lib/*/libibverbs.so.1 /usr/lib/*/librdmacm.so.1; do
        "$HERE/add_file.sh" "$root" "$f" "$f"
    done
    echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
    echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    install -m 755 "$HERE/init" "$root/init"
    cc -O2 -static -pthread -Wall -Wextra -Werror -o "$root/bin/pulse" "$HERE/pulse.c"
    cp "$CACHE"/kernel/boot/vmlinuz-* "$CACHE/vmlinuz"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$CACHE/base.cpio.gz.tmp"
    mv "$CACHE/base.cpio.gz.tmp" "$CACHE/base.cpio.gz"
}

mkdir -p "$CACHE"
"$HERE/../scripts/install-packages" "$HERE/../packages.txt"
fetch_kernel
stamp=$(cat "$HERE/prepare.sh" "$HERE/add_file.sh" "$HERE/init" "$HERE/pulse.c" | sha256sum)
if [ ! -f "$CACHE/base.cpio.gz" ] || [ "$(cat "$CACHE/base.stamp" 2>/dev/null)" != "$stamp" ]; then
    build_base
    echo "$stamp" >"$CACHE/base.stamp"
fi
