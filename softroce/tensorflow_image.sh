#!/bin/bash
# tensorflow_image.sh PYTHON WHEEL_TREE IMAGE: an ext2 image with the interpreter of the virtual environment
# PYTHON, its TensorFlow, the plugin and the programs of the test, to be mounted read-only and entered with chroot.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
python=$1 plugin=$2 image=$(realpath -m "$3")
root=$image.root
trap 'rm -rf "$root"' EXIT
rm -rf "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,py,t}

real=$(readlink -f "$python")
stdlib=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$root$(dirname "$real")" "$root$stdlib"
cp "$real" "$root$real"
# The interpreter finds its library by its own path. Tests and development files stay out.
tar -C "$stdlib" -c --exclude=site-packages --exclude=test --exclude='config-*' --exclude=idlelib . | tar -C "$root$stdlib" -x
tar -C "$site" -c --exclude='./tensorflow/include' --exclude=./clang --exclude=./sklearn --exclude=./scipy \
  --exclude='./scipy.libs' --exclude=./matplotlib --exclude=./fontTools --exclude=./PIL --exclude='./pillow.libs' \
  --exclude=./pip --exclude=./setuptools --exclude='./rdma_tensorflow*' . | tar -C "$root/py" -x
cp -r "$plugin/rdma_tensorflow" "$root/py/"
cp "$TOP"/integrations/tensorflow/tests/programs/*.py "$root/t/"
ln -s "$real" "$root/bin/python"
cp "$HERE/guest/tensorflow_pair" "$root/t/"
"$HERE/add_file.sh" "$root" /bin/busybox /bin/busybox
"$HERE/add_file.sh" "$root" /bin/dash /bin/sh
for lib in /usr/lib/*/libibverbs/librxe-rdmav*.so /usr/lib/*/libibverbs.so.1 /usr/lib/*/librdmacm.so.1; do
  "$HERE/add_file.sh" "$root" "$lib" "$lib"
done
mkdir -p "$root/etc/libibverbs.d"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
printf '127.0.0.1 localhost\n10.9.0.1 softroce\n' >"$root/etc/hosts"
echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"

# Libraries of the system that any of these needs.
find "$root" -name '*.so*' -type f -o -path "$root$real" | xargs -r ldd 2>/dev/null |
  awk '/=> \// { print $3 } /^\t\/.*ld-linux/ { print $1 }' | sort -u | while read -r lib; do
  case $lib in "$root"*) continue ;; esac
  [ -e "$root$lib" ] || { mkdir -p "$root$(dirname "$lib")" && cp -L "$lib" "$root$lib"; }
done

size=$(($(du -sm "$root" | cut -f1) * 112 / 100 + 64))
rm -f "$image"
/sbin/mke2fs -q -t ext2 -m 0 -d "$root" "$image" "${size}M"
