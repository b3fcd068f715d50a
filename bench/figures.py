"""Figures that a benchmark has written, as tables, judged aims and plots."""
import csv
import math
import sys

WORDS = {"latency": "half round trip", "rate": "rate, 256 in flight", "bandwidth": "bandwidth"}
# The lower of these is the better.
TIMES = ("latency", "exchange", "ring", "halving")


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def value_name(value, unit):
    if unit == "us" and value >= 1000:
        value, unit = value / 1000, "ms"
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{text} {unit.replace('us', 'µs').replace('M/s', 'million/s')}"


class Figures:
    """What was seen: provider, what, bytes, who; `peers` are those to whom others are compared."""

    def __init__(self, path, peers=()):
        self.peers = list(peers)
        lines = open(path).read().splitlines()
        self.facts = [line[2:] for line in lines if line.startswith("# ")]
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        self.value = {(r["provider"], r["what"], int(r["bytes"]), r["who"]): float(r["median"]) for r in rows}
        self.unit = {r["what"]: r["unit"] for r in rows}
        self.points = list(dict.fromkeys((r["provider"], r["what"], int(r["bytes"])) for r in rows))
        self.who = list(dict.fromkeys(r["who"] for r in rows))

    def points_of(self, provider):
        return [(what, size) for p, what, size in self.points if p == provider]

    def get(self, provider, what, size, who):
        return self.value.get((provider, what, size, who))

    def best(self, provider, what, size, among=None):
        """(figure, name) of the best of these, or of the peers."""
        seen = [(self.get(provider, what, size, name), name) for name in among or self.peers]
        seen = [x for x in seen if x[0] is not None]
        return (min if what in TIMES else max)(seen) if seen else (None, None)

    def ratio(self, provider, what, size, who, to=None):
        """To the best of these, or of the peers; None where either was not seen."""
        a, (b, _) = self.get(provider, what, size, who), self.best(provider, what, size, to)
        return a / b if a is not None and b else None


def table(figures, columns, points, words=None):
    """Markdown. A column is (heading, provider, who), who None for the best peer; points are (what, bytes)."""
    words = words or WORDS
    lines = ["| | " + " | ".join(heading for heading, _, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for what, size in points:
        cells = []
        for _, provider, who in columns:
            value, name = figures.best(provider, what, size) if who is None else (figures.get(provider, what, size, who), who)
            if value is None:
                cells.append("")
                continue
            cell = value_name(value, figures.unit[what])
            if who is None:
                cell += f" ({name})"
            elif (ratio := figures.ratio(provider, what, size, who)) is not None:
                cell += f", **{ratio:.2f}**"
            cells.append(cell)
        lines.append(f"| {words[what]}, {size_name(size)} | " + " | ".join(cells) + " |")
    return lines


def judged(figures, aims):
    """Each aim, what was seen and whether that meets it; those missed come first. An aim: text, provider, what, sizes, who, to whom, limit;
    the worst size counts."""
    lines = []
    for text, provider, what, sizes, who, to, limit in aims:
        lower = what in TIMES
        seen = [(figures.ratio(provider, what, size, who, to), size) for size in sizes]
        seen = [x for x in seen if x[0] is not None]
        if not seen:
            continue
        worst = (max if lower else min)(seen)[0]
        met = worst <= limit if lower else worst >= limit
        each = ", ".join(f"{ratio:.2f} ({size_name(size)})" for ratio, size in seen)
        lines.append((met, f"| {'met' if met else '**missed**'} | {text} | {'≤' if lower else '≥'} {limit} | {each} |"))
    return ["| | ratio | aim | seen |", "|---|---|---|---|"] + [line for _, line in sorted(lines, key=lambda x: x[0])]


def where(figures):
    return ["Seen on " + figures.facts[0] + ".", figures.facts[1][0].upper() + figures.facts[1][1:] + "."]


# ---- the plot ----
WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 420, 270, 44, 34, 60, 46


def panel(x, y, title, lines, colours, dashed):
    """One chart of ratios, logarithmic, against the sizes that there are; lines: who -> [(bytes, ratio)]."""
    every = [point for points in lines.values() for point in points]
    xs = sorted({size for size, _ in every})
    ticks = [base * 10.0 ** power for power in range(-4, 4) for base in (1, 2, 5)]
    low = max(t for t in ticks if t <= min(ratio for _, ratio in every))
    high = min(t for t in ticks if t >= max(ratio for _, ratio in every))
    px = lambda size: x + WIDTH * xs.index(size) / max(1, len(xs) - 1)
    py = lambda ratio: y + HEIGHT * math.log10(high / ratio) / math.log10(high / low)
    out = [f'<text x="{x}" y="{y - 10}" font-weight="bold">{title}</text>']
    for size in xs:
        out.append(f'<path d="M{px(size):.1f} {y}v{HEIGHT}" stroke="#e6e6e6"/>')
        out.append(f'<text x="{px(size):.1f}" y="{y + HEIGHT + 16}" text-anchor="middle" font-size="11">{size_name(size)}</text>')
    for tick in (t for t in ticks if low <= t <= high):
        colour = "#606060" if tick == 1 else "#d8d8d8"
        out.append(f'<path d="M{x} {py(tick):.1f}h{WIDTH}" stroke="{colour}"/>')
        out.append(f'<text x="{x - 6}" y="{py(tick) + 4:.1f}" text-anchor="end" font-size="11">{tick:g}</text>')
    for who, points in lines.items():
        dash = ' stroke-dasharray="5 3"' if who in dashed else ""
        path = "L".join(f"{px(size):.1f} {py(ratio):.1f}" for size, ratio in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colours[who]}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{px(s):.1f}" cy="{py(r):.1f}" r="2.5" fill="{colours[who]}"/>' for s, r in points]
    return out


def plot(title, rows, colours, dashed=()):
    """A drawing of rows of panels, each a title and lines, with a legend. Lines: who -> [(bytes, ratio)]."""
    every = [who for who in colours if any(who in lines for row in rows for _, lines in row)]
    out, y = [], LEGEND + TOP
    for row in rows:
        row = [(words, lines) for words, lines in row if lines]
        for index, (words, lines) in enumerate(row):
            out += panel(LEFT + index * (WIDTH + GAP), y, words, lines, colours, dashed)
        y += (HEIGHT + TOP + 34) if row else 0
    width = 2 * WIDTH + GAP + LEFT + 30
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y - TOP}" font-family="sans-serif" font-size="13">',
            f'<title>{title}</title>', '<rect width="100%" height="100%" fill="white"/>']
    for index, who in enumerate(every):
        cx, cy = LEFT + index % 5 * 180, 18 + index // 5 * 20
        dash = ' stroke-dasharray="5 3"' if who in dashed else ""
        head.append(f'<path d="M{cx} {cy}h26" stroke="{colours[who]}" stroke-width="3"{dash}/><text x="{cx + 32}" y="{cy + 4}">{who}</text>')
    return "\n".join(head + out + ["</svg>", ""])


def ratios(figures, provider, whats):
    """Lines of ratios to the best peer."""
    lines = {}
    for who in figures.who:
        for what, size in figures.points_of(provider):
            ratio = figures.ratio(provider, what, size, who) if what in whats else None
            if ratio is not None:
                lines.setdefault(who, []).append((size, ratio))
    return lines


def best_of_peers(figures):
    """The plot of what passes between two processes, on shm and tcp: small by its rate, large by bandwidth."""
    return [[(f"{provider}: half round trip (below 1 is better)", ratios(figures, provider, ["latency"])),
             (f"{provider}: rate, from 64 KiB bandwidth (above 1 is better)", ratios(figures, provider, ["rate", "bandwidth"]))]
            for provider in ("shm", "tcp")]


def replace(path, marks):
    """Puts lines between <!-- NAME --> and <!-- end NAME -->."""
    text = open(path, encoding="utf-8").read()
    for name, lines in marks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        head, _, rest = text.partition(begin)
        _, found, tail = rest.partition(end)
        if not found:
            sys.exit(f"{path} has no part {begin.strip()} to {end}")
        text = head + begin + "\n".join(lines) + "\n" + end + tail
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
