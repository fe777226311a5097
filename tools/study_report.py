"""The table (Markdown), the picture (SVG) and the numbers (JSON) of a comparison that tools/study.py has run."""
import json
import math
import statistics

import plot
import studies

COLOURS = (
    ("#57606a", "#9ea7b3"), ("#0069a8", "#63b8f0"), ("#c24a00", "#f0a04b"), ("#00795a", "#45c9a0"),
    ("#9c3d7c", "#e090c4"), ("#7a6400", "#d9c04a"), ("#5b4bb5", "#a79bf0"), ("#8a1c1c", "#f08a80"),
)
DASHES = ("", "8 3 2 3", "2 3")  # of the groups
PANEL = {"left": 64, "width": 390, "gap": 92}


def mean(values):
    return statistics.fmean(values)


def spread(values):
    """The standard deviation over seeds; NaN for one seed."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def losses(runs):
    return [run["loss"] for run in runs]


def reference(rows, case):
    """The dense runs that a case is compared with."""
    return next(runs for other, runs in rows if other.label == "dense" and other.group == case.group)


def paired(runs, dense):
    """Differences to the dense model, seed by seed."""
    return [run["loss"] - other["loss"] for run, other in zip(runs, dense)]


def count(seeds):
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def plus_minus(values, sign=""):
    text = f"{mean(values):{sign}.4f}"
    return text if len(values) == 1 else f"{text} ± {spread(values):.4f}"


def row_cells(rows, case, runs, printed_dense):
    first = runs[0]
    difference = "" if case.label == "dense" else plus_minus(paired(runs, reference(rows, case)), "+")
    printed = ""
    if case.printed is not None:
        printed = f"{case.printed:.3f}".rstrip("0")
        if printed_dense is not None and case.label != "dense":
            printed += f" ({case.printed - printed_dense:+.2f})"
    return [
        f"{case.group} {case.label}".strip(), first["layout"], f"{first['parameters']:,}",
        f"{first['flops_per_token'] / 1e6:.2f}", f"{mean(run['training_flops'] for run in runs) / 1e12:.2f}",
        plus_minus(losses(runs)), f"{min(losses(runs)):.4f}", f"{max(losses(runs)):.4f}", difference,
        f"{mean(run['train_seconds'] for run in runs):.0f}", f"{max(run['peak_bytes'] for run in runs) / 1e6:.0f}",
        printed,
    ]


HEADER = ("method", "layout", "parameters", "MFLOP a token", "training TFLOP", "validation loss", "best seed",
          "worst seed", "minus dense, paired", "seconds", "peak MB", "paper")


def table(rows):
    printed_dense = next((case.printed for case, _ in rows if case.label == "dense"), None)
    cells = [row_cells(rows, case, runs, printed_dense) for case, runs in rows]
    if not any(row[-1] for row in cells):
        cells, header = [row[:-1] for row in cells], HEADER[:-1]
    else:
        header = HEADER
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *cells)]
    return "\n".join(lines)


def depth_table(rows):
    """Losses by depth, mean over seeds, of the cases that have more than one exit."""
    deep = [(case, runs) for case, runs in rows if len(runs[0]["loss_by_depth"]) > 1]
    depths = sorted({int(depth) for _, runs in deep for depth in runs[0]["loss_by_depth"]})
    if not deep:
        return ""
    lines = [["depth", *map(str, depths)], ["---"] * (len(depths) + 1)]
    for case, runs in deep:
        cells = []
        for depth in map(str, depths):
            found = [run["loss_by_depth"][depth] for run in runs if depth in run["loss_by_depth"]]
            cells.append(f"{mean(found):.4f}" if found else "")
        lines.append([f"{case.group} {case.label} (R = {runs[0]['depth']})".strip(), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def notes(rows, options, scale, steps):
    seeds = len(rows[0][1])
    tokens = rows[0][1][0]["tokens"]
    evaluated = rows[0][1][0]["evaluated"]
    lines = [
        f"{count(seeds)}; {steps:,} steps, {tokens / 1e6:.2f} M tokens a run unless the row says otherwise. "
        f"± is the standard deviation over seeds. Losses: nats per {scale.unit} at full depth, over {evaluated:,} "
        f"{scale.unit}s of held-out text. FLOPs are those executed; seconds are training steps alone.",
    ]
    causal = [(case, runs) for case, runs in rows if runs[0].get("loss_causal") is not None]
    for case, runs in causal:
        lines.append(f"{case.group} {case.label}: top-k routing, which looks at later tokens; under its causal rule "
                     f"{plus_minus([run['loss_causal'] for run in runs])}.".strip())
    if options.comparison == "extrapolate":
        lines.append(studies.PRINTED_BEYOND)
    if any(case.printed is not None for case, _ in rows):
        lines.append("Paper: the loss it prints at this scale, and the difference to its dense model.")
    return "\n\n".join(lines)


def command(options):
    words = ["tools/study.py", "--scale", options.scale, "--comparison", options.comparison]
    for flag in ("seeds", "steps", "data_train", "data_val"):
        value = getattr(options, flag)
        default = flag == "seeds" and value == 2 or flag.startswith("data") and options.fetched
        if value and not default:
            words += [f"--{flag.replace('_', '-')}", str(value)]
    return " ".join(words)


def markdown(options, scale, steps, rows):
    parts = [f"# {studies.QUESTIONS[options.comparison]}, scale {options.scale}", f"`{command(options)}`", table(rows),
             notes(rows, options, scale, steps), depth_table(rows), f"![loss]({options.comparison}.svg)"]
    return "\n\n".join(part for part in parts if part) + "\n"


# --- the picture ------------------------------------------------------------------------------------------------------


def padded(values, share=0.05):
    low, high = min(values), max(values)
    pad = share * (high - low) or 0.05
    return low - pad, high + pad


def mean_curve(runs):
    """The validation losses at each validation, FLOPs and losses averaged over seeds."""
    return [(mean(run["curve"][i][0] for run in runs), mean(run["curve"][i][1] for run in runs))
            for i in range(min(len(run["curve"]) for run in runs))]


def styles(rows):
    """For each row its colour, one a label, and its dashes: one kind a group, or in a single group dense's own."""
    labels = list(dict.fromkeys(case.label for case, _ in rows))
    groups = list(dict.fromkeys(case.group for case, _ in rows))
    found = []
    for case, _ in rows:
        single = "6 4" if case.label == "dense" else ""
        found.append((labels.index(case.label), single if len(groups) == 1 else DASHES[groups.index(case.group)]))
    return found


def flops_panel(rows, unit, top):
    curves = [[(flops / 1e12, loss) for flops, loss in mean_curve(runs)] for _, runs in rows]
    curves = [curve[1:] or curve for curve in curves]  # without the steep start
    points = [point for curve in curves for point in curve]
    end = max(x for x, _ in points) * 1.02
    panel = plot.Panel(PANEL["left"], top, PANEL["width"], (0, end), padded([y for _, y in points]))
    out = panel.axes(plot.ticks(0, end, 6), "training FLOPs, executed (TFLOP)", f"validation loss (nats per {unit})")
    for (colour, dashes), curve in zip(styles(rows), curves):
        out.append(panel.curve(curve, f"run{colour} thick", dashes))
        out += panel.dots(curve[-1:], f"dot{colour}")
    return out


def depth_panel(rows, unit, top):
    curves = []
    for _, runs in rows:
        depths = sorted(int(depth) for depth in runs[0]["loss_by_depth"])
        curves.append([(depth, mean(run["loss_by_depth"][str(depth)] for run in runs)) for depth in depths])
    deep = [curve for curve in curves if len(curve) > 1]
    if not deep:
        return []
    lowest, deepest = min(c[0][0] for c in deep), max(c[-1][0] for c in deep)
    typical = sorted(loss for curve in curves for _, loss in curve)
    high = typical[math.ceil(0.9 * len(typical)) - 1]  # an exit that nothing was trained for may lie far above
    box = padded([loss for loss in typical if loss <= high], 0.1)
    left = PANEL["left"] + PANEL["width"] + PANEL["gap"]
    panel = plot.Panel(left, top, PANEL["width"], (lowest - 0.3, deepest + 0.3), box)
    ticks = [value for value in plot.ticks(lowest, deepest, 8) if value == int(value)]
    out = panel.axes(ticks, "depth (recurrences)", f"loss of the held-out text (nats per {unit})")
    out.append(f'<clipPath id="depth"><rect x="{left}" y="{top}" width="{PANEL["width"]}" '
               f'height="{plot.PLOT["height"]}"/></clipPath>')
    for (colour, dashes), curve in zip(styles(rows), curves):
        if len(curve) > 1:
            out += panel.dots([point for point in curve if box[0] <= point[1] <= box[1]], f"dot{colour}")
        else:  # a model of one depth: a line to compare with
            curve = [(panel.xs[0], curve[0][1]), (panel.xs[1], curve[0][1])]
        out.append(panel.curve(curve, f"run{colour} thick", dashes, 'clip-path="url(#depth)"'))
    return out


def legend(rows, columns=4):
    out = []
    for i, ((case, runs), (colour, dashes)) in enumerate(zip(rows, styles(rows))):
        x, y = PANEL["left"] + 230 * (i % columns), 48 + plot.LEGEND_ROW * (i // columns)
        out.append(f'<path class="curve run{colour} thick" stroke-dasharray="{dashes}" d="M{x} {y - 4}h24"/>')
        out.append(plot.text(x + 30, y, f"{case.group} {case.label}: {mean(losses(runs)):.3f}".strip()))
    return out


def picture(options, scale, rows):
    top = 76 + plot.LEGEND_ROW * ((len(rows) - 1) // 4)
    height, width = top + plot.PLOT["height"] + 64, 2 * (PANEL["left"] + PANEL["width"]) + PANEL["gap"]
    rules = ["", ""]
    for mode in (0, 1):
        for i, colour in enumerate(COLOURS):
            rules[mode] += f".run{i} {{ stroke: {colour[mode]} }} .dot{i} {{ fill: {colour[mode]} }}\n"
    style = (f"<style>{plot.STYLE}.thick {{ stroke-width: 2 }}\n{rules[0]}"
             f"@media screen and (prefers-color-scheme: dark) {{{plot.DARK}{rules[1]}}}</style>")
    title = f"{studies.QUESTIONS[options.comparison]} ({options.scale}, {count(len(rows[0][1]))})"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{plot.escape(title)}</title>", style, f'<rect class="page" width="{width}" height="{height}"/>',
        plot.text(PANEL["left"], 22, title, "title"), *legend(rows), *flops_panel(rows, scale.unit, top),
        *depth_panel(rows, scale.unit, top), "</svg>", "",
    ])


# ----------------------------------------------------------------------------------------------------------------------


def numbers(options, rows):
    return {
        "command": command(options),
        "rows": [{"label": case.label, "group": case.group, "preset": case.preset, "flags": case.flags,
                  "printed": case.printed, "runs": runs} for case, runs in rows],
    }


def write(place, options, scale, steps, rows):
    files = [place.with_suffix(suffix) for suffix in (".md", ".svg", ".json")]
    files[0].write_text(markdown(options, scale, steps, rows))
    files[1].write_text(picture(options, scale, rows))
    files[2].write_text(json.dumps(numbers(options, rows), indent=1) + "\n")
    return files
