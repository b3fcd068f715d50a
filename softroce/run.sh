#!/bin/bash
# Runs tests inside the Soft-RoCE machine: QEMU, a stock kernel, its software RDMA device.
#
#   softroce/run.sh [--list FILE] [--timeout SECONDS] [--disk IMAGE]
#
# IMAGE becomes a read-only disk of the machine, /dev/vda once the drivers are loaded.
# FILE (default: softroce/tests.list) has one entry per line:
#   cargo NAME [--release]      the integration test NAME, built here, becomes /t/NAME
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
LIMIT=4200
DISK=()
LOG=${SOFTROCE_LOG:-$SOFTROCE_CACHE/last.log}

while [ $# -gt 0 ]; do
    case $1 in
    --list) LIST=$2; shift 2 ;;
    --timeout) LIMIT=$2; shift 2 ;;
    --disk) DISK=(-drive "file=$2,format=raw,if=virtio,readonly=on"); shift 2 ;;
    *) sed -n '2,13p' "$0"; exit 2 ;;
    esac
done

"$HERE/prepare.sh"
work=$(mktemp -d "$SOFTROCE_CACHE/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/t"

# Where cargo put the executable of integration test $1; $2 may be --release.
test_binary() {
    (cd "$TOP" && cargo test ${2:-} --no-run --message-format=json --test "$1" 2>"$work/cargo.log") |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

while read -r word a b rest; do
    case $word in
    cargo)
        bin=$(test_binary "$a" "$b")
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

# Two processors of the machine on one of this host, as a busy scheduler may put them, wait for each other's
# time slices: milliseconds for each message. So each gets one of its own.
pin_processors() {
    local allowed thread i=0
    mapfile -t allowed < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
        awk -F- '{ for (c = $1; c <= (NF > 1 ? $2 : $1); c++) print c }')
    [ "${#allowed[@]}" -ge 2 ] || return 0
    sleep 2
    for thread in /proc/[0-9]*/task/*; do
        [[ $(cat "$thread/comm" 2>/dev/null) == CPU\ [0-9]/TCG ]] || continue
        [[ $(tr '\0' ' ' <"${thread%/task/*}/cmdline") == *"$work/initrd"* ]] || continue
        taskset -cp "${allowed[i++ % ${#allowed[@]}]}" "${thread##*/}" >/dev/null
    done
}

# Ends a machine whose heartbeat (softroce/pulse.c) is not heard: nothing else would, until the time limit.
SILENCE=${SOFTROCE_SILENCE:-180}
watch_heart() {
    local size=-1 now quiet=0 pid
    while sleep 5; do
        pid=$(cat "$work/pid" 2>/dev/null) || continue
        kill -0 "$pid" 2>/dev/null || return 0
        now=$(stat -c %s "$work/pulse" 2>/dev/null || echo 0)
        if [ "$now" != "$size" ]; then
            size=$now quiet=0
        elif [ $((quiet += 5)) -ge "$SILENCE" ] && [ "$now" != 0 -o $quiet -ge 300 ]; then # booting takes a while
            touch "$work/silent"
            kill "$pid"
            return 0
        fi
    done
}

# Beside other stages the machine goes first, where that may be said: while one of its processors waits for this host's, the
# other spins for it (a lock, an answer to an interrupt), so that the same tests cost more the longer they take. Beside three busy
# loops c_pipeline and c_two_hosts_v4 took 341 s, 282 s of processor time, and 193 and 240 so.
first() {
    if [ "$(nice -n -5 nice 2>/dev/null)" = "$(($(nice) - 5))" ]; then nice -n -5 "$@"; else "$@"; fi
}

boot() {
rm -f "$work/pulse" "$work/silent" "$work/pid"
pin_processors &
watch_heart >/dev/null 2>&1 &
heart=$!
# In the foreground, so that an interrupt reaches it.
# Without `rep movsb`, which is emulated byte by byte: a tenth of the time.
first timeout --foreground -k 5 "$LIMIT" qemu-system-x86_64 -name softroce,debug-threads=on -accel tcg,thread=multi -cpu max,-erms -smp 2 \
    -m "${SOFTROCE_MEMORY:-5G}" -nodefaults -no-reboot -display none -serial stdio -serial "file:$work/pulse" -pidfile "$work/pid" "${DISK[@]}" \
    -kernel "$SOFTROCE_CACHE/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet loglevel=3 panic=-1 softlockup_panic=1 mitigations=off random.trust_cpu=on tsc=reliable" \
    </dev/null | sed -u 's/\r$//' | tee "$LOG" || true
kill "$heart" 2>/dev/null || true
wait
}

# What the kernel says of its own death.
oops() {
    grep -aE -m1 -A25 '(BUG|Oops|general protection|invalid opcode|stack segment|Kernel panic)' "$LOG" | grep -avE '^===|Modules linked in|Code: ' || true
}

# The initrd that goes on: without the tests that have ended in what $work/ended has of the machines before.
remaining() {
    awk 'FILENAME != list { sub(/:$/, "", $3); gone[$3] = 1; next } !($1 == "test" && $2 in gone)' \
        list="$LIST" <(grep -aE '^=== (PASS|FAIL|SKIP) ' "$work/ended") "$LIST" >"$root/tests.list"
    (cd "$root" && echo tests.list | cpio -o -H newc --quiet | gzip -1) >"$work/rest.cpio.gz"
    cat "$SOFTROCE_CACHE/base.cpio.gz" "$work/tests.cpio.gz" "$work/rest.cpio.gz" >"$work/initrd"
}

# No program may kill a kernel, so a kernel that dies has said nothing about the library: another machine goes on with the test in
# which it died, three machines at most, and it is said, with what the kernel says. Of the emulated one it is known that it runs an
# instruction that the other processor is just patching, while it boots or later (`Oops: int3`: a breakpoint in its own text, which it
# leaves there as long as it patches. tsc=reliable: it patches its clock when it takes the counter for unreliable, as on a busy
# host). A test in which two kernels die has failed: there may be a way to kill one, which users have to know of.
: >"$work/ended"
died_in=none
for try in 1 2 3; do
    boot
    test=$(grep -a '^=== RUN' "$LOG" | tail -1 | cut -c10- || true)
    panic=$(grep -aoE 'Kernel panic - not syncing.*' "$LOG" | head -1 || true)
    [ -n "$panic" ] && [ ! -e "$work/silent" ] && [ $try -lt 3 ] || break
    [ -z "$test" ] || [ "$test" != "$died_in" ] || break
    died_in=$test
    where="while it booted"
    [ -z "$test" ] || where="in the test '$test'"
    echo "softroce: the kernel died (machine $try of 3), $where; another goes on from there. It said:"
    oops
    cat "$LOG" >>"$work/ended"
    remaining
done

# The kernel under test, not the tests, ended the machine: said before all else.
lockup=$(grep -aoE '(soft lockup|hard LOCKUP|rcu_[a-z]+ detected stalls|self-detected stall)' "$LOG" | head -1 || true)
if [ -e "$work/silent" ]; then
    echo "softroce: THE MACHINE STOOD STILL: no heartbeat for $SILENCE s, in the test '$test'; ended"
elif [ -n "$lockup" ]; then
    oops
    echo "softroce: THE KERNEL LOCKED UP ($lockup), in the test '$test'; the machine was ended at once"
elif [ -n "$panic" ]; then
    oops
    echo "softroce: THE KERNEL PANICKED ($panic), in the test '$test'"
fi

result=$(grep -a '^SOFTROCE-RESULT' "$LOG" | tail -1)
[ -n "$result" ] || { echo "softroce: no result; crashed or not done within $LIMIT s"; exit 1; }
if [ -s "$work/ended" ]; then
    # What ended in the machines before, too.
    read -r p f s <<<"$(tr -dc '0-9 ' <<<"$result")"
    ended() { grep -acE "^=== $1 " "$work/ended" || true; }
    result="SOFTROCE-RESULT passed=$((p + $(ended PASS))) failed=$((f + $(ended FAIL))) skipped=$((s + $(ended SKIP)))"
    echo "$result"
fi
[[ $result =~ failed=0\ skipped=0$ ]] || { echo "softroce: $result"; exit 1; }
# Single cases inside of a test may say it, too.
if grep -aE '^cases: .* [1-9][0-9]* skipped|^SKIPPED|^    skipped:' "$work/ended" "$LOG"; then
    echo "softroce: something was skipped"
    exit 1
fi
[[ ! $result =~ passed=0 ]] || { echo "softroce: no test ran"; exit 1; }
