#!/bin/bash
# Runs tests inside the Soft-RoCE machine: QEMU, a stock kernel, its software RDMA device.
#
#   softroce/run.sh [--list FILE] [--timeout SECONDS]
#
# FILE (default: softroce/tests.list) has one entry per line:
#   cargo NAME                  the integration test NAME, built here, becomes /t/NAME
#   file PATH GUESTPATH         a file (from the repository's root), with its shared libraries
#   make GUESTPATH COMMAND      a file that COMMAND writes to $OUT, here
#   test NAME SECONDS COMMAND   run in the machine by sh, in /t; exit status 77 means skipped
#
# Exit status 0 only if the machine reported its result, with no test failed or skipped.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
export SOFTROCE_CACHE=${SOFTROCE_CACHE:-$TOP/.cache/softroce}
LIST=$HERE/tests.list
LIMIT=2400

while [ $# -gt 0 ]; do
    case $1 in
    --list) LIST=$2; shift 2 ;;
    --timeout) LIMIT=$2; shift 2 ;;
    *) sed -n '2,13p' "$0"; exit 2 ;;
    esac
done

"$HERE/prepare.sh"
work=$(mktemp -d "$SOFTROCE_CACHE/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/t"

# Where cargo put the executable of integration test $1.
test_binary() {
    (cd "$TOP" && cargo test --no-run --message-format=json --test "$1" 2>"$work/cargo.log") |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

while read -r word a b rest; do
    case $word in
    cargo)
        bin=$(test_binary "$a")
        [ -n "$bin" ] || { cat "$work/cargo.log"; echo "softroce: test $a was not built"; exit 1; }
        "$HERE/add_file.sh" "$root" "$bin" "/t/$a"
        ;;
    file)
        [ -e "$TOP/$a" ] || { echo "softroce: $a is missing; build first"; exit 1; }
        "$HERE/add_file.sh" "$root" "$TOP/$a" "$b"
        ;;
    make) (cd "$TOP" && OUT=$root$a sh -c "$b $rest") ;;
    esac
done <"$LIST"
cp "$LIST" "$root/tests.list"
cp -r "$HERE/guest/." "$root/t/" 2>/dev/null || true

# The kernel unpacks archives that follow each other.
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/tests.cpio.gz"
cat "$SOFTROCE_CACHE/base.cpio.gz" "$work/tests.cpio.gz" >"$work/initrd"

timeout -k 5 "$LIMIT" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 \
    -m "${SOFTROCE_MEMORY:-3G}" -nodefaults -no-reboot -display none -serial stdio \
    -kernel "$SOFTROCE_CACHE/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on" \
    </dev/null | sed -u 's/\r$//' | tee "$SOFTROCE_CACHE/last.log" || true

result=$(grep -a '^SOFTROCE-RESULT' "$SOFTROCE_CACHE/last.log" | tail -1)
[ -n "$result" ] || { echo "softroce: no result; crashed or not done within $LIMIT s"; exit 1; }
[[ $result =~ failed=0\ skipped=0$ ]] || { echo "softroce: $result"; exit 1; }
[[ ! $result =~ passed=0 ]] || { echo "softroce: no test ran"; exit 1; }
