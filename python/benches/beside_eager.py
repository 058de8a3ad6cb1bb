"""Times training steps within budgets beside eager mode."""

import sys
import time
from statistics import median

import spillway

WARM_UP_STEPS = 3  # they map memory


def print_row(name, steps, trains, plans={}):
    """Prints the median CPU time of a step in eager mode, and the CPU times of other ways as multiples of it: the
    median of the ratios in each turn, since machines are slower at times. In brackets, it prints their median elapsed
    times as multiples of the periods that their `plans` predict. `trains` has a function for each way, by name, which
    trains a step; "eager" comes first. All take turns, and a way that has no plan leaves."""
    times = {k: [] for k in trains}
    ways = dict(trains)
    for _ in range(WARM_UP_STEPS + steps):
        for k, train in list(ways.items()):
            start = time.process_time(), time.perf_counter()
            try:
                train()
            except spillway.InfeasibleError as error:
                print(f"{name}, {k}: {error}", file=sys.stderr)
                del ways[k]
            else:
                times[k].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    cpu_s, elapsed_s = ({k: [t[n] for t in times[k][WARM_UP_STEPS:]] for k in ways} for n in (0, 1))
    eager, *others = times
    cells = []
    for k in others:
        cell = f"{median(own / its for own, its in zip(cpu_s[k], cpu_s[eager])):.2f}" if k in ways else ""
        if cell and k in plans:
            cell += f" ({1e9 * median(elapsed_s[k]) / plans[k].figures.period_ns:.2f})"
        cells.append(cell)
    print(f"| {name} | {1000 * median(cpu_s[eager]):.0f} ms | {' | '.join(cells)} |", flush=True)
