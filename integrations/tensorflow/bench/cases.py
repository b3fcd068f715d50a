"""What the benchmark measures: name → (bytes of a tensor, tensors per step)."""

KIB, MIB = 1 << 10, 1 << 20
MANY = 1000

CASES = {
    "nothing": (0, 0),
    "4 B": (4, 1),
    "64 KiB": (64 * KIB, 1),
    "1 MiB": (MIB, 1),
    "16 MiB": (16 * MIB, 1),
    "100 MiB": (100 * MIB, 1),
    "500 MiB": (500 * MIB, 1),
    "1000 × 4 KiB": (4 * KIB, MANY),
}
