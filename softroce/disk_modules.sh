#!/bin/bash
# Copies the modules of the virtual disk and its file system beside $OUT, and their names, in load order, to $OUT.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # modprobe
mkdir -p "$(dirname "$OUT")"
for module in virtio_pci virtio_blk ext4; do
  modprobe -d "$SOFTROCE_CACHE/kernel" -S "$(ls "$SOFTROCE_CACHE/kernel/lib/modules")" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | grep -v crc32c | while read -r file; do
  cp "$file" "$(dirname "$OUT")/"
  basename "$file"
done >"$OUT"
