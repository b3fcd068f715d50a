#!/bin/bash
# add_file.sh ROOT FILE GUESTPATH: copies FILE to ROOT/GUESTPATH without its debug information,
# and each shared library that it needs to the library's own path.
set -euo pipefail
root=$1 file=$2 guest=$3

copy() {
    mkdir -p "$(dirname "$root$2")"
    strip -g -o "$root$2" "$1" 2>/dev/null || cp -L "$1" "$root$2"
    chmod 755 "$root$2"
}

copy "$file" "$guest"
# A static program or a script has no libraries.
{ ldd "$file" 2>/dev/null || true; } | awk '/=> \// { print $3 } /^\t\/.*ld-linux/ { print $1 }' |
    while read -r lib; do
        [ -e "$root$lib" ] || copy "$lib" "$lib"
    done
