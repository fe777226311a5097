#!/usr/bin/env python3
"""Draws training runs as one SVG: the loss while training, and the validation loss by depth.

  plot.py OUT... --output loss.svg             OUT is a run directory (OUT/train.jsonl), or LABEL=OUT
  plot.py OUT... --eval LABEL=eval.json        the depth curve from `eval --depths all --json` instead of the log
  plot.py OUT... --baselines ngram.json        horizontal lines, {label: loss} as tools/ngram.py writes them

Needs nothing but Python. The picture holds everything it needs and follows the reader's light or dark mode.
"""
import argparse
import json
import math
import pathlib
import sys
from html import escape

PLOT = {"top": 58, "height": 320, "loss_left": 64, "loss_width": 430, "depth_left": 746, "depth_width": 230}
WIDTH, LEGEND_ROW, LABEL_GAP = 1000, 20, 15  # in pixels, as everything below
CURVE_POINTS = 400
# One hue a run, told apart by colour-blind readers too; the second is for dark mode. In print the dashes help.
COLOURS = (("#0069a8", "#63b8f0"), ("#c24a00", "#f0a04b"), ("#00795a", "#45c9a0"), ("#9c3d7c", "#e090c4"))
DASHES = ("", "7 3", "2 3", "8 3 2 3")

STYLE = """
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.note, .tick { font-size: 11px; fill: #57606a }
.page { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
.baseline { stroke: #57606a; stroke-width: 1.2; stroke-dasharray: 5 4; fill: none }
.leader { stroke: #8c959f; stroke-width: 0.8; fill: none }
.curve { fill: none; stroke-linejoin: round }
"""
DARK = """
text { fill: #e6edf3 } .note, .tick { fill: #9ea7b3 } .page { fill: #0d1117 } .grid { stroke: #2b323b }
.axis, .baseline { stroke: #9ea7b3 } .leader { stroke: #6e7681 }
"""


class Run:
    """What one train.jsonl says: points (step, tokens, loss) of training and validation, and the losses by depth."""

    def __init__(self, argument):
        label, equals, path = argument.partition("=")
        path = pathlib.Path(path if equals else argument)
        self.label = label if equals else path.resolve().name
        self.train, self.val, self.by_depth = [], [], {}
        tokens = {}
        for line in read_log(path / "train.jsonl" if path.is_dir() else path):
            step = line["step"]
            if "loss" in line:
                tokens[step] = line["tokens"]
                self.train.append((step, line["tokens"], line["loss"]))
            if "val_loss" in line:
                self.val.append((step, line.get("tokens", tokens.get(step)), line["val_loss"]))
                self.by_depth = depths_of(line.get("val_loss_by_depth"))
        self.train = [point for point in self.train if finite(point)]
        self.val = [point for point in self.val if finite(point)]
        if not self.train:
            sys.exit(f"plot: {path} has no line with a training loss")


def finite(point):
    return all(value is not None and math.isfinite(value) for value in point)


def depths_of(losses):
    return {int(depth): loss for depth, loss in (losses or {}).items()}


def read_json(path, text):
    try:
        return json.loads(text)
    except ValueError as error:
        sys.exit(f"plot: {path}: {error}")


def read_file(path):
    try:
        return path.read_text()
    except OSError as error:
        sys.exit(f"plot: {error}")


def read_log(path):
    text = read_file(path)
    whole = text[: text.rfind("\n") + 1]  # a run under way may be writing the last line
    return [read_json(f"{path}, line {i + 1}", line) for i, line in enumerate(whole.splitlines())]


def smooth(points, window):
    """The mean loss over `window` steps up to each point, thinned out to CURVE_POINTS."""
    sums = [0.0]
    for point in points:
        sums.append(sums[-1] + point[2])
    stride = max(1, len(points) // CURVE_POINTS)
    ends = sorted({*range(stride, len(points) + 1, stride), len(points)})
    return [(*points[end - 1][:2], (sums[end] - sums[max(0, end - window)]) / min(end, window)) for end in ends]


def ticks(low, high, about):
    """Round numbers from low to high, about so many of them."""
    raw = (high - low) / about
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value):
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"


class Panel:
    """A box with axes: turns data into pixels."""

    def __init__(self, left, top, width, xs, ys):
        self.left, self.top, self.width, self.height = left, top, width, PLOT["height"]
        self.xs, self.ys = xs, ys

    def x(self, value):
        return self.left + (value - self.xs[0]) / (self.xs[1] - self.xs[0]) * self.width

    def y(self, value):
        return self.top + (self.ys[1] - value) / (self.ys[1] - self.ys[0]) * self.height

    def axes(self, x_ticks, x_title, y_title):
        bottom, right = self.top + self.height, self.left + self.width
        out = []
        for value in ticks(*self.ys, 7):
            y = self.y(value)
            out.append(f'<line class="grid" x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            out.append(text(self.left - 8, y + 4, number(value), "tick", "end"))
        for value in x_ticks:
            x = self.x(value)
            out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
            out.append(text(x, bottom + 19, number(value), "tick", "middle"))
        out.append(f'<path class="axis" fill="none" d="M{self.left} {self.top}V{bottom}H{right}"/>')
        out.append(text((self.left + right) / 2, bottom + 40, x_title, "", "middle"))
        middle = self.top + self.height / 2
        turned = f"translate({self.left - 48} {middle}) rotate(-90)"
        out.append(f'<g transform="{turned}">{text(0, 0, y_title, "", "middle")}</g>')
        return out

    def curve(self, points, css, dashes="", clip=""):
        d = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return f'<path class="curve {css}" stroke-dasharray="{dashes}" {clip} d="M{d}"/>'

    def dots(self, points, css):
        return [f'<circle class="{css}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.2"/>' for x, y in points]


def text(x, y, words, css="", anchor="start"):
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def spread(wanted, gap, low, high):
    """Positions near the wanted ones, given in rising order, that lie at least `gap` apart, between low and high."""
    placed = []
    for y in wanted:
        placed.append(max(y, low, placed[-1] + gap if placed else low))
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], high if i == len(placed) - 1 else placed[i + 1] - gap)
    return placed


def loss_range(runs, baselines):
    """Of the start of training, where the loss falls steeply, only the end is shown."""
    late = [loss for run in runs for _, _, loss in run.smoothed[len(run.smoothed) // 12 :]]
    values = [*late, *(loss for run in runs for _, _, loss in run.val[1:]), *baselines.values()]
    low, high = min(values), max(values)
    pad = 0.05 * (high - low) or 0.1
    return low - pad, high + pad


def baseline_lines(panel, baselines):
    shown = sorted(((panel.y(loss), label, loss) for label, loss in baselines.items()))
    right, out = panel.left + panel.width, []
    places = spread([y for y, _, _ in shown], LABEL_GAP, panel.top, panel.top + panel.height)
    for (y, label, loss), place in zip(shown, places):
        out.append(f'<path class="baseline" d="M{panel.left} {y:.1f}H{right}"/>')
        out.append(f'<path class="leader" d="M{right} {y:.1f}L{right + 12} {place:.1f}"/>')
        out.append(text(right + 16, place + 4, f"{label}: {loss:.3f}", "note"))
    return out


def loss_panel(runs, baselines, options, top):
    column, unit, title = (0, 1, "steps") if options.x == "steps" else (1, 1e6, "training tokens (millions)")
    end = max(point[column] for run in runs for point in run.train) / unit
    panel = Panel(PLOT["loss_left"], top, PLOT["loss_width"], (0, end), loss_range(runs, baselines))
    out = panel.axes(ticks(0, end, 6), title, f"loss (nats per {options.unit})")
    box = f'x="{panel.left}" y="{top}" width="{panel.width + 4}" height="{panel.height}"'
    out.append(f'<clipPath id="box"><rect {box}/></clipPath>')
    out += baseline_lines(panel, baselines)
    for i, run in enumerate(runs):
        points = [(point[column] / unit, point[2]) for point in run.smoothed]
        out.append(panel.curve(points, f"run{i} thin", clip='clip-path="url(#box)"'))
    for i, run in enumerate(runs):
        points = [(point[column] / unit, point[2]) for point in run.val]
        if points:
            out.append(panel.curve(points, f"run{i} thick", DASHES[i % 4], 'clip-path="url(#box)"'))
        out += panel.dots([point for point in points if panel.ys[0] <= point[1] <= panel.ys[1]], f"dot{i}")
    return out


def depth_panel(runs, options, top):
    losses = [loss for run in runs for loss in run.by_depth.values()]
    depths = [depth for run in runs if len(run.by_depth) > 1 for depth in run.by_depth]
    if not depths:
        return []
    first, last, low, high = min(depths), max(depths), min(losses), max(losses)
    pad = 0.08 * (high - low) or 0.05
    panel = Panel(PLOT["depth_left"], top, PLOT["depth_width"], (first - 0.3, last + 0.3), (low - pad, high + pad))
    every = [value for value in ticks(first, last, 8) if value == int(value)]
    out = panel.axes(every, "depth (recurrences)", f"validation loss (nats per {options.unit})")
    for i, run in enumerate(runs):
        points = sorted(run.by_depth.items())
        if len(points) == 1:  # a model of one depth: a line to compare with
            points = [(panel.xs[0], points[0][1]), (panel.xs[1], points[0][1])]
        else:
            out += panel.dots(points, f"dot{i}")
        if points:
            out.append(panel.curve(points, f"run{i} thick", DASHES[i % 4]))
    return out


def legend(runs):
    """One row a run; the width of a label is guessed from its length."""
    out, x = [], PLOT["loss_left"]
    second = x + 42 + 7 * max(len(run.label) + 9 for run in runs)
    for i, run in enumerate(runs):
        y = 46 + LEGEND_ROW * i
        out.append(f'<path class="curve run{i} thin" d="M{x} {y - 4}h24"/>')
        out.append(text(x + 30, y, f"{run.label} training"))
        out.append(f'<path class="curve run{i} thick" stroke-dasharray="{DASHES[i % 4]}" d="M{second} {y - 4}h24"/>')
        out.append(f'<circle class="dot{i}" cx="{second + 12}" cy="{y - 4}" r="3.2"/>')
        out.append(text(second + 30, y, f"{run.label} validation"))
    return out


def colours(mode):
    rules = ""
    for i in range(len(COLOURS)):
        rules += f".run{i} {{ stroke: {COLOURS[i][mode]} }} .dot{i} {{ fill: {COLOURS[i][mode]} }}\n"
    return rules


def picture(runs, baselines, options):
    top = PLOT["top"] + LEGEND_ROW * (len(runs) - 1)
    height = top + PLOT["height"] + 94
    right = depth_panel(runs, options, top)
    width = WIDTH if right else PLOT["depth_left"] - 40
    steps = ", ".join(f"{run.window} ({run.label})" for run in runs)
    note = f"Training loss: mean over the last steps, their number: {steps}; the steep start is cut off."
    if right and any(len(run.by_depth) == 1 for run in runs):
        note += " By depth: a level line is a model of one depth."
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Loss while training, and validation loss by depth</title>",
        f"<style>{STYLE}.thin {{ stroke-width: 1.1; opacity: 0.75 }} .thick {{ stroke-width: 2.2 }}\n{colours(0)}"
        f"@media screen and (prefers-color-scheme: dark) {{{DARK}{colours(1)}}}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        text(PLOT["loss_left"], 22, "Loss while training", "title"),
        *legend(runs),
        *loss_panel(runs, baselines, options, top),
        text(PLOT["loss_left"], height - 28, note, "note"),
        text(PLOT["loss_left"], height - 12, options.note, "note"),
    ]
    if right:
        out += [text(PLOT["depth_left"], 22, "Validation loss by depth", "title"), *right]
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="OUT", nargs="+", help="a run directory, or LABEL=OUT")
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True)
    parser.add_argument("--eval", metavar="LABEL=FILE", action="append", default=[])
    parser.add_argument("--baselines", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--x", choices=("tokens", "steps"), default="tokens", help="default: tokens")
    parser.add_argument("--unit", default="token", help="what a token is called (default: token)")
    parser.add_argument("--note", default="", help="a line of text below the picture")
    options = parser.parse_args()

    runs = [Run(argument) for argument in options.runs]
    if len(runs) > len(COLOURS):
        sys.exit(f"plot: {len(runs)} runs were given; at most {len(COLOURS)} can be told apart")
    for run in runs:
        run.window = max(1, len(run.train) // 50)
        run.smoothed = smooth(run.train, run.window)
    for argument in options.eval:
        label, _, path = argument.partition("=")
        run = next((run for run in runs if run.label == label), None)
        if run is None:
            sys.exit(f"plot: --eval {argument}: no run has the label {label!r}; there is {[run.label for run in runs]}")
        run.by_depth = depths_of(read_json(path, read_file(pathlib.Path(path))).get("loss_by_depth"))
    baselines = read_json(options.baselines, read_file(options.baselines)) if options.baselines else {}
    try:
        options.output.write_text(picture(runs, baselines, options))
    except OSError as error:
        sys.exit(f"plot: {error}")
    print(f"plot: wrote {options.output}")


if __name__ == "__main__":
    main()
